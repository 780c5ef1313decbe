//! The events of a held lease: hand-off, release and loss.

use std::sync::Arc;

use super::held_lease::{HeldLease, lose};
use crate::lock::clock::Moment;
use crate::lock::lane::{Effects, LATE_RELEASE, Lane, Phase, Report, Returning, Sent, Work};
use crate::lock::lease::{Claim, Grant, HoldId, Lease, LeaseNumber, ReleasedTo};
use crate::observe::{LostReason, Via};
use crate::{Error, ErrorKind, LockKey, Owner};

impl Lane {
    /// Gives a lease to the owner of `claim`.
    #[inline(always)]
    pub(crate) fn hold(
        &mut self,
        key: &LockKey,
        lease: Lease,
        via: Via,
        claim: &Claim,
        now: Moment,
    ) -> Arc<Grant> {
        let held_lease = HeldLease::begin(key, lease, via, claim, now);
        let grant = Arc::clone(held_lease.grant());
        self.phase = Phase::Held(held_lease);
        grant
    }

    pub(crate) fn held_under(&mut self, grant: &Arc<Grant>) -> Option<&mut HeldLease> {
        let held_lease = self.held_lease_mut()?;
        held_lease.find(grant).is_some().then_some(held_lease)
    }

    /// Ends one hold of `grant`. Returns when the lease must have expired in the backend.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        grant: &Arc<Grant>,
        hold: HoldId,
        report: Option<Report>,
        effects: &mut Effects,
    ) -> Moment {
        // A withdrawn grant has no holds left.
        let holds = grant.holds().saturating_sub(1);
        let held = self.held_lease_mut().and_then(|held_lease| {
            let until = held_lease.lease.expires_at();
            held_lease.find(grant).map(|holding| (until, holding))
        });
        let Some((until, holding)) = held else {
            grant.set_holds(holds);
            effects.report(report, Err(Error::new(ErrorKind::Lost)));
            return effects.now;
        };
        if holding.has_ended(hold) {
            effects.report(report, Err(Error::new(ErrorKind::Lost)));
            return effects.now;
        }
        if effects.now >= grant.valid_until() {
            // The watchdog has not reported the loss yet.
            self.expire(effects);
            grant.set_holds(holds);
            effects.report(report, Err(Error::new(ErrorKind::Lost)));
            return until;
        }
        grant.set_holds(holds);
        if holds > 0 {
            if holding.unnest(hold)
                && let Phase::Held(held_lease) = &mut self.phase
            {
                held_lease.follow_others(grant, effects.now);
                effects.recheck(grant);
            }
            effects.report(report, Ok(()));
            return until;
        }
        // Other owners share the lease.
        if let Phase::Held(held_lease) = &mut self.phase
            && held_lease.remove(grant.owner(), effects.now)
        {
            effects.report(report, Ok(()));
            return until;
        }
        let (lease, _) = self.take_lease();
        self.pass_on(grant.key(), lease, report, effects);
        until
    }

    /// Takes the lease that is held, or that is being returned with this report.
    #[inline(always)]
    pub(crate) fn take_lease(&mut self) -> (Lease, Option<Report>) {
        match std::mem::take(&mut self.phase) {
            Phase::Held(held_lease) => (held_lease.lease, None),
            Phase::Returning(returning) => (returning.lease, returning.report),
            _ => unreachable!("BUG: the lease was just found"),
        }
    }

    /// Hands a lease without holds off to the first waiter, or begins its return.
    #[inline(always)]
    pub(crate) fn pass_on(
        &mut self,
        key: &LockKey,
        lease: Lease,
        report: Option<Report>,
        effects: &mut Effects,
    ) {
        match self.first(effects) {
            Some(first) if lease.may_pass_to(first.terms, effects.now) => {
                effects.report(report, Ok(()));
                self.hand_to_first(key, lease, Via::HandOff, effects);
            }
            _ => self.begin_return(lease, report, effects),
        }
    }

    /// Grants the lease to the first waiter, and to those that may share it.
    pub(crate) fn hand_to_first(
        &mut self,
        key: &LockKey,
        lease: Lease,
        via: Via,
        effects: &mut Effects,
    ) {
        let queued = !self.queue.is_attempting();
        let Some(waiter) = self.queue.pop_first() else {
            unreachable!("BUG: the first waiter was just found");
        };
        // A first attempt is not in the queue.
        if queued {
            self.queue.pace_mut().advance(effects.now);
        }
        let claim = waiter.claim;
        let grant = self.hold(key, lease, via, &claim, effects.now);
        if let Phase::Held(held_lease) = &mut self.phase {
            held_lease.first.expect_pick_up(&claim);
        }
        effects.grant(waiter, &grant, queued);
        self.grant_companions(&claim, &grant, effects);
        self.admit(key, effects);
        // A waiter for a single attempt queued as the first, and another acquire overtook it.
        while let Some(next) = self.queue.first()
            && next.claim.deadline.is_one_attempt()
            && let Some(waiter) = self.queue.pop_first()
        {
            effects.reject(waiter, self.why_not(effects.now));
            // It may have been ahead of those that may share the lease.
            self.admit(key, effects);
        }
    }

    /// Gives a hold to its waiter. Returns `false` if the hold has ended.
    pub(crate) fn picked_up(&mut self, grant: &Arc<Grant>, hold: HoldId) -> bool {
        let holding = (self.held_lease_mut()).and_then(|held_lease| held_lease.find(grant));
        holding.is_some_and(|holding| holding.pick_up(hold))
    }

    /// Begins the return of a lease without holds.
    pub(crate) fn begin_return(
        &mut self,
        mut lease: Lease,
        report: Option<Report>,
        effects: &mut Effects,
    ) {
        // The release must follow the reply to a renewal in flight, so that it takes effect last.
        if !lease.is_in_flight() {
            effects.work.push(Work::Return);
        }
        lease.keep_until(None);
        let forget_at = lease.expires_at().max(effects.now + LATE_RELEASE);
        self.phase = Phase::Returning(Returning {
            forget_at,
            lease,
            report,
            sent: Sent::Never,
            trouble: None,
        });
    }

    /// Joins this lock to those of other keys, under one guard. Returns `false` if the hold has ended.
    ///
    /// The longest hold counts from here. The next hand-off needs a fresh counter, which exceeds the largest
    /// token of the guard.
    pub(crate) fn join_keys(&mut self, grant: &Arc<Grant>, claim: &Claim, now: Moment) -> bool {
        if !self.picked_up(grant, claim.hold) {
            return false;
        }
        if let Phase::Held(held_lease) = &mut self.phase {
            held_lease.lease.end_hand_offs();
            held_lease.limit_hold(grant, claim, now);
        }
        true
    }

    // ---- losing ---------------------------------------------------------------------------

    /// Marks a lease that is held or being returned, or that an attempt in flight acquires, as possibly lost.
    pub(crate) fn require_renewal(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Held(held_lease) => held_lease.lease.require_renewal(now),
            Phase::Contending(contending) => contending.suspect = true,
            // It is not granted again without a reply to a later command.
            Phase::Returning(returning) => {
                if let Sent::Once { may_be_lost, .. } = &mut returning.sent {
                    *may_be_lost = true;
                }
                returning.lease.end_hand_offs();
            }
            Phase::Idle | Phase::Yielding { .. } => {}
        }
    }

    /// Applies a forced release of the key. `seen` is the lease of this lane when the command was sent.
    pub(crate) fn released_by_force(&mut self, seen: Option<LeaseNumber>, effects: &mut Effects) {
        match &self.phase {
            // The lease was granted before or after the command took effect: a renewal shows which.
            Phase::Held(held_lease) if seen != Some(held_lease.lease.number()) => {
                self.require_renewal(effects.now);
            }
            Phase::Contending(_) => self.require_renewal(effects.now),
            // The lease is gone, even if it was handed off to another owner since.
            _ => self.lose(LostReason::Forced, effects),
        }
    }

    /// Ends the hold of `owner` by force, and begins the return of its lease if no other owner shares it. Returns when
    /// the lease must have expired in the backend, or `None` if another owner holds the key, or none. Takes the report if
    /// the owner holds it.
    pub(crate) fn force(
        &mut self,
        owner: Owner,
        report: &mut Option<Report>,
        effects: &mut Effects,
    ) -> Option<Moment> {
        let held_lease = self.held_lease_mut()?;
        let grant = Arc::clone(&held_lease.of_owner(owner)?.grant);
        if !grant.is_held(effects.now) {
            return None;
        }
        let report = report.take();
        lose(&grant, LostReason::Forced, effects);
        let until = held_lease.lease.expires_at();
        if held_lease.remove(owner, effects.now) {
            effects.report(report, Ok(()));
            return Some(until);
        }
        let (lease, _) = self.take_lease();
        self.begin_return(lease, report, effects);
        Some(until)
    }

    /// Applies the loss of the lease in the backend.
    pub(crate) fn lose(&mut self, reason: LostReason, effects: &mut Effects) {
        match &mut self.phase {
            Phase::Held(_) => {
                (self.holders()).for_each(|grant| lose(grant, reason, effects));
                self.contend_or_idle(ReleasedTo::Nobody, effects);
            }
            // The reply to a release in flight shows whether the loss came first.
            Phase::Returning(_) => {
                self.require_renewal(effects.now);
                self.end_keep(effects);
            }
            Phase::Idle | Phase::Yielding { .. } | Phase::Contending(_) => {}
        }
    }

    /// Ends the holds that were not picked up by their deadlines, and the grants that have reached their ends. If none is
    /// left, begins the return of the lease, which the backend may hold a little longer.
    pub(crate) fn end_overdue(&mut self, effects: &mut Effects) {
        let Phase::Held(held_lease) = &mut self.phase else {
            return;
        };
        if held_lease.end_overdue(effects) {
            let (lease, _) = self.take_lease();
            self.begin_return(lease, None, effects);
        }
    }
}
