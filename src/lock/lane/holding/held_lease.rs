//! A held lease, and the owners that hold it: one, or several that share it.

use std::ops::BitOr;
use std::sync::Arc;

use super::end::End;
use super::sharers::{ASK_AGAIN, Sharers};
use super::{MAX_HOLD_COUNT, OwnerHolds};
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lane::{Effects, Loss, Wakeup};
use crate::lock::lease::{Claim, Grant, Lease};
use crate::observe::{LostReason, Via};
use crate::{ErrorKind, LockKey, Owner};

#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) lease: Lease,
    /// The first owner, or another one after it released.
    pub(crate) first: OwnerHolds,
    /// The other owners. Boxed because an exclusive lease has none.
    sharers: Option<Box<Sharers>>,
    /// The task that makes the lease shared.
    pub(crate) downgrading: Option<Downgrading>,
}

/// Notifies the task of a downgrade when it may have something to do: also when the lease has ended, which drops this.
#[derive(Debug)]
pub(crate) struct Downgrading(pub(crate) Wakeup);

impl Drop for Downgrading {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl HeldLease {
    /// Begins with the hold of a waiter. A holder that has the lease from another one of this process gets a fresh token.
    #[inline]
    pub(crate) fn begin(
        key: &LockKey,
        mut lease: Lease,
        via: Via,
        claim: &Claim,
        now: Moment,
    ) -> Self {
        if via != Via::Backend {
            lease.hand_on();
        }
        let grant = grant(key, &lease, via, claim, now);
        Self {
            first: OwnerHolds::new(grant, claim),
            lease,
            sharers: None,
            downgrading: None,
        }
    }

    /// Returns the grant of the first owner.
    pub(crate) fn grant(&self) -> &Arc<Grant> {
        &self.first.grant
    }

    fn holdings(&self) -> impl Iterator<Item = &OwnerHolds> {
        let readers = self.sharers.iter().flat_map(|it| it.readers.iter());
        std::iter::once(&self.first).chain(readers)
    }

    pub(crate) fn grants(&self) -> impl Iterator<Item = &Arc<Grant>> {
        self.holdings().map(|holding| &holding.grant)
    }

    /// Returns the holds of this owner.
    pub(crate) fn of_owner(&mut self, owner: Owner) -> Option<&mut OwnerHolds> {
        if self.first.grant.owner() == owner {
            return Some(&mut self.first);
        }
        self.sharers.as_mut()?.reader(owner)
    }

    /// Returns the holds of this grant.
    #[inline(always)]
    pub(crate) fn find(&mut self, grant: &Arc<Grant>) -> Option<&mut OwnerHolds> {
        if Arc::ptr_eq(&self.first.grant, grant) {
            return Some(&mut self.first);
        }
        self.find_reader(grant)
    }

    #[cold]
    fn find_reader(&mut self, grant: &Arc<Grant>) -> Option<&mut OwnerHolds> {
        let holding = self.sharers.as_mut()?.reader(grant.owner());
        holding.filter(|holding| Arc::ptr_eq(&holding.grant, grant))
    }

    fn make_sharers(&mut self) -> &mut Sharers {
        let granted_at = self.first.grant.granted_at;
        (self.sharers).get_or_insert_with(|| Box::new(Sharers::new(granted_at)))
    }

    #[inline]
    pub(crate) fn has_readers(&self) -> bool {
        (self.sharers.as_ref()).is_some_and(|sharers| !sharers.readers.is_empty())
    }

    /// Adds a hold to the grant of its owner. Returns that grant, or why the owner gets no further hold. Returns `None`
    /// if another owner holds the lease.
    #[inline(always)]
    pub(crate) fn nest(
        &mut self,
        claim: &Claim,
        now: Moment,
    ) -> Option<Result<Arc<Grant>, ErrorKind>> {
        // It has no other hold.
        if claim.is_owner_fresh {
            return None;
        }
        let (held, lasts) = (self.lease.mode(), self.lease.lasts_as(claim.terms));
        let is_downgrading = self.downgrading.is_some();
        let holding = self.of_owner(claim.owner)?;
        let refused = match claim.terms.mode {
            // It would wait for itself, or the lock is about to be shared.
            Mode::Exclusive if held == Mode::Shared || is_downgrading => Some(ErrorKind::Upgrade),
            Mode::Permit if is_downgrading => Some(ErrorKind::KeyConflict),
            _ if holding.grant.holds() >= MAX_HOLD_COUNT => Some(ErrorKind::ReentrancyLimit),
            _ => None,
        };
        if let Some(kind) = refused {
            return Some(Err(kind));
        }
        let grant = Arc::clone(&holding.grant);
        if lasts && holding.is_like(claim, now) {
            holding.nest_uniform();
        } else {
            self.nest_other(claim, now);
        }
        Some(Ok(grant))
    }

    #[cold]
    fn nest_other(&mut self, claim: &Claim, now: Moment) {
        let uniform = End::of_uniform(&self.lease);
        // Owners that join later also find them mixed.
        self.make_sharers().is_mixed = true;
        if let Some(holding) = self.of_owner(claim.owner) {
            holding.nest(claim, uniform, now);
            holding.follow_holds();
        }
        self.follow_holds(uniform, now);
    }

    /// Applies the terms of all holds to the lease. `uniform` is the end of holds that are not listed.
    fn follow_holds(&mut self, uniform: End, now: Moment) {
        let ends = self.holdings().map(|holding| holding.end(uniform));
        match ends.max().unwrap_or(uniform) {
            End::Renewed(ttl) => self.lease.want_always(ttl, now),
            End::At(end) => self.lease.want_until(end, now),
        }
        self.ask_again(now);
    }

    /// Makes a renewal due soon if its reply decides whether owners may join, whatever the holds require.
    pub(crate) fn ask_again(&mut self, now: Moment) {
        if self.sharers.as_deref().is_some_and(Sharers::awaits_reply) {
            self.lease.ask(now + ASK_AGAIN);
        }
    }

    /// Applies the terms of the other holds of this owner, whose holds are listed.
    #[cold]
    pub(crate) fn follow_others(&mut self, grant: &Arc<Grant>, now: Moment) {
        if let Some(holding) = self.find(grant) {
            holding.follow_holds();
        }
        self.expect_end_of(grant.owner());
        let uniform = End::of_uniform(&self.lease);
        self.follow_holds(uniform, now);
    }

    /// Starts `max_hold` of this hold now.
    pub(crate) fn limit_hold(&mut self, grant: &Arc<Grant>, claim: &Claim, now: Moment) {
        let uniform = End::of_uniform(&self.lease);
        let holding = self.find(grant);
        if holding.is_some_and(|holding| holding.limit_hold(claim, uniform, now)) {
            self.follow_others(grant, now);
        } else if self.has_readers() {
            self.expect_end_of(grant.owner());
        }
    }

    // ---- several owners -------------------------------------------------------------------

    /// Returns `true` if the owner of `claim` may share the lease.
    pub(crate) fn admits(&self, claim: &Claim, now: Moment) -> bool {
        self.lease.mode() == Mode::Shared
            && claim.terms.mode == Mode::Shared
            && (self.sharers.as_ref()).is_none_or(|sharers| sharers.is_open(now))
            && self.lease.may_be_joined(claim.terms, now)
    }

    /// Adds an owner that shares the lease. It has the token of the others.
    pub(crate) fn join(&mut self, key: &LockKey, claim: &Claim, now: Moment) -> Arc<Grant> {
        let uniform = End::of_uniform(&self.lease);
        let is_uniform = claim.terms.renewed && self.lease.lasts_as(claim.terms);
        // Other readers are listed, or renewed as the lease is while one of them holds it.
        if !is_uniform {
            self.first.list_holds(uniform);
        }
        let joined = grant(key, &self.lease, Via::HandOff, claim, now);
        let mut holding = OwnerHolds::new(Arc::clone(&joined), claim);
        if !is_uniform {
            holding.list_holds(End::of(claim, now));
        }
        let sharers = self.make_sharers();
        sharers.is_mixed |= !is_uniform;
        sharers.expect_end(holding.own_end());
        sharers.add(holding);
        let asks = sharers.asks(now);
        if !is_uniform {
            self.follow_holds(uniform, now);
        }
        if asks {
            self.lease.ask(now);
        }
        joined
    }

    /// Sets the deadline by which an acquire has to pick up its hold.
    pub(crate) fn expect_pick_up(&mut self, claim: &Claim) {
        if let Some(holding) = self.of_owner(claim.owner) {
            holding.expect_pick_up(claim);
        }
        self.expect_end_of(claim.owner);
    }

    /// Removes an owner. Returns `false` if it is the only one.
    #[inline(always)]
    pub(crate) fn remove(&mut self, owner: Owner, now: Moment) -> bool {
        self.has_readers() && self.remove_reader(owner, now)
    }

    #[cold]
    fn remove_reader(&mut self, owner: Owner, now: Moment) -> bool {
        let Some(sharers) = &mut self.sharers else {
            return false;
        };
        if sharers.remove(owner).is_none() {
            let Some(next) = sharers.pop() else {
                unreachable!("BUG: a reader was just found");
            };
            self.first = next;
        }
        // Thousands of owners may share a lease, mostly under the same terms.
        if sharers.is_mixed {
            let uniform = End::of_uniform(&self.lease);
            self.follow_holds(uniform, now);
        }
        true
    }

    /// Moves the ends of all grants after a renewal.
    pub(crate) fn extend_grants(&self) {
        let until = self.lease.valid_until();
        self.grants().for_each(|grant| grant.extend(until));
    }

    /// Applies the reply to a renewal that was sent at `sent_at`: owners join while no other process waits.
    pub(crate) fn set_wanted(&mut self, wanted: bool, sent_at: Moment) {
        if self.lease.mode() == Mode::Shared {
            self.make_sharers().replied(sent_at, wanted);
            if wanted {
                self.lease.end_hand_offs();
            }
        }
    }

    // ---- time -----------------------------------------------------------------------------

    /// Ends the holds that were not picked up by their deadlines, and the owners whose locks have ended. Returns `true` if no
    /// owner is left.
    pub(crate) fn end_overdue(&mut self, effects: &mut Effects) -> bool {
        if self.ends_by() > effects.now {
            return false;
        }
        // One by one, many readers would take long.
        if self
            .grants()
            .all(|grant| effects.now >= grant.valid_until())
        {
            (self.grants()).for_each(|grant| lose(grant, grant.reason_by_clock(), effects));
            return true;
        }
        let mut owners = vec![self.first.grant.owner()];
        if let Some(sharers) = &mut self.sharers {
            sharers.readers_end = None;
            owners.extend(sharers.readers.iter().map(|it| it.grant.owner()));
        }
        for owner in owners {
            let Some(holding) = self.of_owner(owner) else {
                continue;
            };
            let grant = Arc::clone(&holding.grant);
            let ended = holding.end_forgotten(effects.now);
            if !ended.is_empty() {
                grant.set_holds(grant.holds() - u32::try_from(ended.len()).unwrap_or(u32::MAX));
            }
            let is_lost = effects.now >= grant.valid_until();
            if grant.holds() > 0 && !is_lost {
                let unnested = ended.into_iter().map(|hold| holding.unnest(hold));
                if unnested.fold(false, BitOr::bitor) {
                    self.follow_others(&grant, effects.now);
                    effects.recheck(&grant);
                }
                self.expect_end_of(owner);
                continue;
            }
            if is_lost {
                lose(&grant, grant.reason_by_clock(), effects);
            }
            if !self.remove(owner, effects.now) {
                return true;
            }
        }
        false
    }

    fn expect_end_of(&mut self, owner: Owner) {
        let own_end = self.of_owner(owner).map(|holding| holding.own_end());
        if let (Some(at), Some(sharers)) = (own_end, &mut self.sharers) {
            sharers.expect_end(at);
        }
    }

    /// Returns `true` if no caller may have observed a loss.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        now < self.valid_until()
    }

    /// Returns when the lock of the last owner ends if the lease is not renewed.
    pub(crate) fn valid_until(&self) -> Moment {
        match self.has_readers() {
            true => self.lease.valid_until(),
            false => self.first.grant.valid_until(),
        }
    }

    /// Returns when the watchdog has to check the lease.
    pub(crate) fn next_check(&self) -> Moment {
        let ends_by = self.ends_by();
        let renewal = self.lease.next_renewal();
        renewal.map_or(ends_by, |renewal| renewal.min(ends_by))
    }

    /// Returns when the first of its holds ends without further events, or earlier.
    pub(crate) fn ends_by(&self) -> Moment {
        let first = self.first.ends_by();
        let readers = self.sharers.as_ref().and_then(|it| it.readers_end);
        readers.map_or(first, |readers| readers.min(first))
    }
}

fn grant(key: &LockKey, lease: &Lease, via: Via, claim: &Claim, now: Moment) -> Arc<Grant> {
    let (token, until) = (lease.token(), lease.valid_until());
    Grant::new(key.clone(), claim, via, token, until, now)
}

/// Marks a grant lost.
pub(crate) fn lose(grant: &Arc<Grant>, reason: LostReason, effects: &mut Effects) {
    effects.losses.push(Loss {
        while_held: grant.lose(reason),
        grant: Arc::clone(grant),
    });
}
