//! The events of a lease that is held: hand-off, release, loss.

use std::sync::Arc;

use super::state::{Elsewhere, LATE_RELEASE, Lane, Phase, Returning, TAKE_OVER, Yielded};
use super::tenure::Tenure;
use crate::lock::claim::{Claim, HoldId};
use crate::lock::clock::Moment;
use crate::lock::effect::{Effects, Given, Granted, PickUp, Report, Work};
use crate::lock::grant::Grant;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::observe;
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// The end of one hold.
#[derive(Debug)]
pub(in crate::lock) struct Release {
    pub(in crate::lock) hold: HoldId,
    pub(in crate::lock) report: Option<Report>,
    /// Where the lease is returned, if the caller runs in a runtime.
    pub(in crate::lock) home: Option<RuntimeId>,
    pub(in crate::lock) now: Moment,
}

impl Lane {
    pub(super) fn hold(&mut self, tenure: Tenure) -> Arc<Grant> {
        let grant = Arc::clone(&tenure.grant);
        self.phase = Phase::Held(tenure);
        grant
    }

    fn held_under(&mut self, grant: &Arc<Grant>) -> Option<&mut Tenure> {
        match &mut self.phase {
            Phase::Held(tenure) if Arc::ptr_eq(&tenure.grant, grant) => Some(tenure),
            _ => None,
        }
    }

    /// One hold of `grant` ends. Returns when the lease must have expired in the backend.
    pub(in crate::lock) fn release(
        &mut self,
        key: &LockKey,
        grant: &Arc<Grant>,
        release: Release,
        effects: &mut Effects,
    ) -> Moment {
        let Release {
            hold,
            report,
            home,
            now,
        } = release;
        // None is left where the grant was withdrawn.
        let holds = grant.holds().saturating_sub(1);
        let own = self.home;
        let Some(tenure) = self.held_under(grant) else {
            grant.set_holds(holds);
            effects.report(report, Err(Error::new(ErrorKind::Lost)));
            return now;
        };
        if tenure.has_ended(hold) {
            effects.report(report, Err(Error::new(ErrorKind::Lost)));
            return now;
        }
        let until = tenure.lease.expires_at();
        let Some(home) = home.or(own) else {
            unreachable!("BUG: what is held has a runtime");
        };
        if now >= grant.valid_until() {
            // The watchdog has not come by yet.
            self.lose_by_clock(home, now, effects);
            grant.set_holds(holds);
            effects.report(report, Err(Error::new(ErrorKind::Lost)));
            return until;
        }
        grant.set_holds(holds);
        if holds > 0 {
            if tenure.unnest(hold, now) {
                effects.losses.push(Arc::clone(grant));
            }
            effects.report(report, Ok(()));
            return until;
        }
        let Phase::Held(Tenure { lease, .. }) = std::mem::take(&mut self.phase) else {
            unreachable!("BUG: the tenure was just found");
        };
        match self.first(now, effects) {
            Some(first) if lease.may_pass_to(first.terms, now) => {
                effects.report(report, Ok(()));
                self.move_to(home);
                self.hand_to_first(now, effects, |claim| {
                    Tenure::handed_on(key, lease, claim, now)
                });
            }
            _ => self.surrender(lease, report, home, now, effects),
        }
        until
    }

    /// The lease goes on with another owner of this process.
    pub(super) fn hand_on(
        &mut self,
        key: &LockKey,
        lease: Lease,
        claim: Claim,
        now: Moment,
    ) -> Arc<Grant> {
        self.move_to(claim.home);
        self.hold(Tenure::handed_on(key, lease, claim, now))
    }

    /// The first in the queue holds the lease.
    pub(super) fn hand_to_first(
        &mut self,
        now: Moment,
        effects: &mut Effects,
        begin: impl FnOnce(Claim) -> Tenure,
    ) {
        let Some((_, waiter)) = self.queue.pop_first() else {
            unreachable!("BUG: the first waiter was just found");
        };
        let claim = waiter.claim;
        let mut tenure = begin(claim);
        tenure.expect_pick_up(&claim);
        let grant = self.hold(tenure);
        effects.grants.push(Granted {
            reply: waiter.reply,
            hold: claim.hold,
            given: Given {
                grant: Arc::clone(&grant),
                pick_up: self.pick_up_by_flag(&claim),
            },
        });
        self.grant_companions(claim.owner, &grant, now, effects);
        // A waiter for a single attempt that queued as the first and was overtaken.
        while let Some(next) = self.queue.first_entry()
            && next.get().claim.deadline.is_one_attempt()
        {
            let waiter = next.remove();
            effects.reject(waiter.reply, self.why_not(now));
        }
        if let Some(lease) = self.asks_ahead(now) {
            let home = self.home.unwrap_or(claim.home);
            effects.work.push(Work::ExtendAhead(lease, home));
        }
        if self.queue.is_empty() && self.holder_homes().is_empty() {
            self.elsewhere = Elsewhere::Nobody;
        }
    }

    /// Until a waiter picks up its grant, the runtime of this event looks after it: that of the waiter may
    /// not run.
    fn pick_up_by_flag(&self, claim: &Claim) -> PickUp {
        if self.home == Some(claim.home) {
            PickUp::Flag
        } else {
            PickUp::Event
        }
    }

    /// The waiter picks up its hold, in its own runtime. Returns `false` if it has ended.
    pub(in crate::lock) fn picked_up(&mut self, grant: &Arc<Grant>, claim: &Claim) -> bool {
        let Some(tenure) = self.held_under(grant) else {
            return false;
        };
        let picked_up = tenure.pick_up(claim.hold);
        if picked_up {
            self.move_to(claim.home);
        }
        picked_up
    }

    /// Returns the lease if the next in the queue would have to wait for the backend soon.
    fn asks_ahead(&mut self, now: Moment) -> Option<LeaseNumber> {
        let next = self.queue.values().next()?.claim.terms;
        let Phase::Held(Tenure { lease, .. }) = &mut self.phase else {
            return None;
        };
        let asks = lease.may_pass_to(next, now) && lease.asks_ahead(now);
        asks.then(|| lease.number())
    }

    /// Nobody here holds the lease any more: it is returned to the backend by a task in `home`.
    pub(super) fn surrender(
        &mut self,
        lease: Lease,
        report: Option<Report>,
        home: RuntimeId,
        now: Moment,
        effects: &mut Effects,
    ) {
        self.move_to(home);
        // No renewal may be sent after the release: the reply to one in flight comes first.
        if !lease.is_in_flight() {
            effects.work.push(Work::Return(home));
        }
        let forget_at = lease.expires_at().max(now + LATE_RELEASE);
        self.phase = Phase::Returning(Returning {
            forget_at,
            lease,
            report,
            sent: false,
            sent_again: false,
            due: now + TAKE_OVER,
        });
    }

    /// Several locks are held as one from now on: the longest hold counts from here, and the next
    /// hand-off of this one takes a fresh counter, so that the largest token of the group separates the
    /// holders of each. Returns `false` if the hold has ended.
    pub(in crate::lock) fn join_group(
        &mut self,
        grant: &Arc<Grant>,
        claim: &Claim,
        now: Moment,
    ) -> bool {
        if !self.picked_up(grant, claim) {
            return false;
        }
        if let Some(tenure) = self.held_under(grant) {
            tenure.lease.retire();
            tenure.limit_hold(claim.hold, claim.terms.max_hold, now);
        }
        true
    }

    // ---- losing ---------------------------------------------------------------------------

    /// The backend may have lost what is held, or what an attempt in flight has got.
    pub(in crate::lock) fn mark_suspect(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Held(tenure) => tenure.lease.mark_suspect(now),
            Phase::Contending(contending) => contending.suspect = true,
            _ => {}
        }
    }

    /// The key was released by force in the backend, by a command that went out when the lease `seen` was
    /// here.
    pub(in crate::lock) fn released_by_force(
        &mut self,
        seen: Option<LeaseNumber>,
        now: Moment,
        effects: &mut Effects,
    ) {
        match &self.phase {
            // The lease came since; or before, and its reply since: a renewal shows which.
            Phase::Held(tenure) if seen != Some(tenure.lease.number()) => self.mark_suspect(now),
            Phase::Contending(_) => self.mark_suspect(now),
            // The lease is gone, also where it was handed to another owner since.
            _ => self.lose(now, effects),
        }
    }

    /// The backend does not hold the lease any more.
    pub(super) fn lose(&mut self, now: Moment, effects: &mut Effects) {
        match &mut self.phase {
            Phase::Held(tenure) => {
                mark_lost(&tenure.grant, effects);
                self.contend_or_idle(Yielded::ToNobody, now, effects);
            }
            Phase::Returning(returning) if !returning.sent => returning.lease.retire(),
            // A reply that it was kept is from before.
            Phase::Returning(returning) => {
                let report = returning.report.take();
                effects.report(report, Err(Error::new(ErrorKind::Lost)));
                self.contend_or_idle(Yielded::ToNobody, now, effects);
            }
            Phase::Idle | Phase::Contending(_) => {}
        }
    }

    /// The guard's deadline has passed. The lease is returned all the same: the backend may hold it a
    /// little longer.
    pub(super) fn lose_by_clock(&mut self, home: RuntimeId, now: Moment, effects: &mut Effects) {
        let Phase::Held(Tenure { lease, grant, .. }) = std::mem::take(&mut self.phase) else {
            unreachable!("BUG: only what is held is lost");
        };
        mark_lost(&grant, effects);
        self.surrender(lease, None, home, now, effects);
    }

    /// No acquire has picked it up by its deadline: the lease is returned.
    pub(super) fn withdraw(&mut self, home: RuntimeId, now: Moment, effects: &mut Effects) {
        let Phase::Held(Tenure { lease, grant, .. }) = std::mem::take(&mut self.phase) else {
            unreachable!("BUG: only a grant is withdrawn");
        };
        grant.mark_lost();
        effects.losses.push(grant);
        self.surrender(lease, None, home, now, effects);
    }
}

fn mark_lost(grant: &Arc<Grant>, effects: &mut Effects) {
    if grant.mark_lost() {
        observe::lost();
    }
    effects.losses.push(Arc::clone(grant));
}
