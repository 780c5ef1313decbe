//! A held lease: its grant, and the terms of each hold.

use std::sync::Arc;
use std::time::Duration;

use crate::LockKey;
use crate::lock::claim::{Claim, HoldId};
use crate::lock::clock::{Moment, Span};
use crate::lock::effect::Effects;
use crate::lock::grant::Grant;
use crate::lock::lease::{Lease, valid_until};
use crate::observe::Via;
use crate::task::RuntimeId;

/// The time after which a task that has not begun, an acquire that is not polled, or a renewal that another
/// runtime should have sent counts as stuck.
pub(in crate::lock) const TAKE_OVER: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) lease: Lease,
    pub(super) grant: Arc<Grant>,
    /// The deadline by which the acquire of the first hold has to pick it up.
    pick_up_by: Option<Moment>,
    /// Boxed because it is rare.
    others: Option<Box<Others>>,
}

/// What only a lease with other holds than the first needs.
#[derive(Debug, Default)]
struct Others {
    /// The holds, oldest first. Empty while there is one, or several with the same limit that require the same
    /// renewals.
    mixed: Vec<Hold>,
    /// Each hold with the deadline by which its acquire has to pick it up.
    unclaimed: Vec<(HoldId, Moment)>,
    ended: Vec<HoldId>,
    /// The runtimes of holds other than that of the first hold.
    homes: Vec<RuntimeId>,
}

/// One of several holds of one owner. The lease lasts as long as the longest of them requires, but at most
/// until the limit of the oldest one.
#[derive(Debug, Clone, Copy)]
struct Hold {
    name: Name,
    end: End,
    limit: Moment,
}

/// The end of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Renewed by leases of this length until it is released.
    Renewed(Span),
    At(Moment),
}

/// Which hold an entry of the list stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    /// Any of the holds that were alike before another kind was added, which are interchangeable.
    Alike,
    Id(HoldId),
}

impl Tenure {
    /// Begins the tenure of a holder under a fresh counter.
    pub(super) fn begin(key: &LockKey, lease: Lease, claim: &Claim, now: Moment) -> Self {
        Self::begin_via(Via::Backend, key, lease, claim, now)
    }

    fn begin_via(via: Via, key: &LockKey, lease: Lease, claim: &Claim, now: Moment) -> Self {
        let (token, until) = (lease.token(), lease.valid_until());
        let grant = Grant::new(key.clone(), claim, via, token, until, now);
        Self {
            lease,
            grant,
            pick_up_by: claim.deadline.moment().filter(|_| claim.grouped),
            others: None,
        }
    }

    /// Begins the tenure of the next holder in this process, with a fresh token and without a command.
    pub(super) fn handed_off(key: &LockKey, mut lease: Lease, claim: &Claim, now: Moment) -> Self {
        lease.hand_on();
        Self::begin_via(Via::HandOff, key, lease, claim, now)
    }

    /// Begins the tenure of an acquire that takes back a lease before its release is sent.
    pub(super) fn reclaimed(key: &LockKey, mut lease: Lease, claim: &Claim, now: Moment) -> Self {
        lease.hand_on();
        Self::begin_via(Via::Reclaimed, key, lease, claim, now)
    }

    /// Sets the deadline by which the acquire has to pick up its hold. It may not be polled any more.
    pub(super) fn expect_pick_up(&mut self, claim: &Claim) {
        if self.is_first(claim.hold) {
            self.pick_up_by = claim.deadline.moment();
        } else if let Some(by) = claim.deadline.moment() {
            let others = self.others.get_or_insert_default();
            others.unclaimed.push((claim.hold, by));
        }
    }

    /// Picks up a hold. Returns `false` if it has ended because the acquire was too late.
    pub(super) fn pick_up(&mut self, hold: HoldId) -> bool {
        if self.is_first(hold) {
            return self.grant.pick_up();
        }
        let Some(others) = &mut self.others else {
            return true;
        };
        others.unclaimed.retain(|(id, _)| *id != hold);
        !others.ended.contains(&hold)
    }

    /// Ends the holds that were not picked up by their deadline. Returns `true` if no hold is left.
    pub(super) fn end_forgotten(&mut self, now: Moment, effects: &mut Effects) -> bool {
        let mut ended = Vec::new();
        if self.pick_up_by.is_some_and(|by| by <= now) {
            self.pick_up_by = None;
            if self.grant.withdraw() {
                ended.push(self.grant.first_hold());
            }
        }
        if let Some(others) = &mut self.others {
            others.unclaimed.retain(|(hold, by)| {
                let in_time = *by > now;
                if !in_time {
                    ended.push(*hold);
                }
                in_time
            });
        }
        for hold in ended {
            let holds = self.grant.holds() - 1;
            self.grant.set_holds(holds);
            self.others.get_or_insert_default().ended.push(hold);
            if holds == 0 {
                return true;
            }
            if self.unnest(hold, now) {
                effects.recheck(&self.grant);
            }
        }
        false
    }

    /// Adds the runtime of a hold, whose watchdog renews the lease if the first one does not.
    pub(super) fn add_home(&mut self, home: RuntimeId) {
        let others = self.others.get_or_insert_default();
        if !others.homes.contains(&home) {
            others.homes.push(home);
        }
    }

    /// The runtime has ended.
    pub(super) fn remove_home(&mut self, ended: RuntimeId) {
        if let Some(others) = &mut self.others {
            others.homes.retain(|home| *home != ended);
        }
    }

    pub(super) fn homes(&self) -> &[RuntimeId] {
        self.others.as_ref().map_or(&[], |others| &others.homes)
    }

    /// Returns when the watchdog of another hold's runtime has to renew the lease.
    pub(super) fn renewal_overdue(&self, response_timeout: Duration) -> Moment {
        let due = match self.lease.in_flight_since() {
            // A short lease cannot wait for the reply.
            Some(since) => Some(since + response_timeout.min(self.lease.ttl().get() / 6)),
            None => self.lease.next_renewal(),
        };
        let valid_until = self.grant.valid_until();
        due.map_or(valid_until, |due| valid_until.min(due + TAKE_OVER))
    }

    pub(super) fn is_first(&self, hold: HoldId) -> bool {
        hold == self.grant.first_hold()
    }

    /// Returns `true` if the hold has ended before its release.
    pub(super) fn has_ended(&self, hold: HoldId) -> bool {
        let others = self.others.as_ref();
        others.is_some_and(|others| others.ended.contains(&hold))
    }

    /// Adds a hold of the same owner.
    pub(super) fn nest(&mut self, claim: &Claim, now: Moment) {
        let terms = claim.terms;
        let is_alike = terms.renewed
            && self.listed().is_empty()
            && self.lease.fits(terms)
            && self.grant.limit() == now + terms.max_hold;
        if !is_alike {
            self.mix(claim, now);
        }
        self.grant.set_holds(self.grant.holds() + 1);
    }

    /// Lists a hold that is not like the others.
    #[cold]
    fn mix(&mut self, claim: &Claim, now: Moment) {
        let terms = claim.terms;
        let end = if terms.renewed {
            End::Renewed(terms.ttl)
        } else {
            End::At(valid_until(now, terms.ttl))
        };
        let hold = Hold {
            name: Name::Id(claim.hold),
            end,
            limit: now + terms.max_hold,
        };
        self.mixed().push(hold);
        self.follow_holds(now);
    }

    /// Returns the holds if they are not alike.
    fn listed(&self) -> &[Hold] {
        self.others.as_ref().map_or(&[], |others| &others.mixed)
    }

    /// Returns the end of each hold while they are alike. The lease then has the terms of the first one.
    fn end_of_alike(&self) -> End {
        if self.lease.is_renewed() {
            End::Renewed(self.lease.ttl())
        } else {
            End::At(self.lease.valid_until())
        }
    }

    /// Converts the holds to a list, and returns it.
    fn mixed(&mut self) -> &mut Vec<Hold> {
        let hold = Hold {
            name: Name::Alike,
            end: self.end_of_alike(),
            limit: self.grant.limit(),
        };
        let holds = &mut self.others.get_or_insert_default().mixed;
        if holds.is_empty() {
            holds.resize(self.grant.holds() as usize, hold);
        }
        holds
    }

    /// Ends one hold of several, so the terms of the others apply. Returns `true` if the grant may end
    /// earlier.
    pub(super) fn unnest(&mut self, hold: HoldId, now: Moment) -> bool {
        // A group dropped while it waits for another key has not picked up this hold.
        if self.is_first(hold) {
            self.pick_up_by = None;
        } else if let Some(others) = &mut self.others {
            others.unclaimed.retain(|(id, _)| *id != hold);
        }
        let Some(others) = &mut self.others else {
            return false;
        };
        let holds = &mut others.mixed;
        if holds.is_empty() {
            return false;
        }
        let find = |name| holds.iter().position(|hold| hold.name == name);
        let Some(at) = find(Name::Id(hold)).or_else(|| find(Name::Alike)) else {
            unreachable!("BUG: a hold is released once");
        };
        holds.remove(at);
        self.follow_holds(now);
        true
    }

    /// Starts `max_hold` of this hold now.
    pub(super) fn limit_hold(&mut self, hold: HoldId, max_hold: Span, now: Moment) {
        let limit = now + max_hold;
        if self.listed().is_empty() {
            if self.grant.holds() == 1 {
                self.grant.set_limit(limit);
                return;
            }
            if self.grant.limit() == limit {
                return;
            }
        }
        let is_first = self.is_first(hold);
        let mut holds = self.mixed().iter_mut();
        let fits = |it: &&mut Hold| it.name == Name::Id(hold) || it.name == Name::Alike;
        // The first hold is the oldest.
        let held = if is_first {
            holds.find(fits)
        } else {
            holds.rfind(fits)
        };
        if let Some(held) = held {
            (held.name, held.limit) = (Name::Id(hold), limit);
        }
        self.follow_holds(now);
    }

    fn follow_holds(&mut self, now: Moment) {
        let holds = self.listed();
        let Some(oldest) = holds.first().copied() else {
            return;
        };
        let mut latest = None;
        let mut renewed = None;
        for hold in holds {
            match hold.end {
                End::Renewed(ttl) => renewed = Some(ttl),
                End::At(at) => latest = latest.max(Some(at)),
            }
        }
        let limit = match (renewed, latest) {
            (None, Some(end)) => {
                self.lease.want_until(end, now);
                end.min(oldest.limit)
            }
            (Some(ttl), _) => {
                self.lease.want_always(ttl, now);
                oldest.limit
            }
            (None, None) => unreachable!("BUG: each hold has an end"),
        };
        self.grant.renewed_until(limit, limit < oldest.limit);
    }

    /// Returns when the watchdog has to check the lease.
    pub(super) fn next_look(&self) -> Moment {
        let ends_by = self.ends_by();
        let renewal = self.lease.next_renewal();
        renewal.map_or(ends_by, |renewal| renewal.min(ends_by))
    }

    /// Returns when the first of its holds ends without further events.
    pub(super) fn ends_by(&self) -> Moment {
        let mut next = self.grant.valid_until();
        if let Some(by) = self.pick_up_by
            && self.grant.is_offered()
        {
            next = next.min(by);
        }
        if let Some(others) = &self.others {
            let unclaimed = others.unclaimed.iter().map(|(_, by)| *by);
            next = unclaimed.fold(next, Moment::min);
        }
        next
    }
}
