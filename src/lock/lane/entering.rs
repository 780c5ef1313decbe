//! The entry of an acquire into a lane.

use std::sync::Arc;

use super::queue::has_patient_waiters;
use super::state::{Contending, Lane, Phase, Seen};
use crate::lock::claim::Claim;
use crate::lock::clock::Moment;
use crate::lock::effect::Effects;
use crate::lock::grant::Grant;
use crate::lock::options::MAX_HOLD_COUNT;
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// The result of an acquire's entry.
#[derive(Debug)]
pub(in crate::lock) enum Entered {
    Granted(Arc<Grant>),
    /// The owner has one more hold.
    Nested(Arc<Grant>),
    /// The lane is idle, so the acquire makes the first attempt.
    Idle,
    /// Other acquires are ahead. The lane is unchanged.
    Occupied,
    Rejected(Error),
}

impl Lane {
    /// Enters an acquire, or returns why it has to wait.
    pub(in crate::lock) fn enter(
        &mut self,
        key: &LockKey,
        claim: &Claim,
        now: Moment,
        effects: &mut Effects,
    ) -> Entered {
        self.expire(claim.home, now, effects);
        match &mut self.phase {
            Phase::Idle => Entered::Idle,
            // A single attempt cannot wait for a turn.
            Phase::Yielding { .. } if claim.deadline.is_one_attempt() => Entered::Idle,
            Phase::Yielding { .. } => Entered::Occupied,
            Phase::Held(tenure) if tenure.grant.owner() == claim.owner => {
                if tenure.grant.holds() >= MAX_HOLD_COUNT {
                    return Entered::Rejected(Error::new(ErrorKind::ReentrancyLimit));
                }
                tenure.nest(claim, now);
                if claim.grouped {
                    tenure.expect_pick_up(claim);
                }
                let grant = Arc::clone(&tenure.grant);
                if self.home != Some(claim.home) {
                    tenure.add_home(claim.home);
                    self.queue.notify_elsewhere();
                }
                Entered::Nested(grant)
            }
            Phase::Returning(returning)
                if !returning.sent
                    && self.queue.is_empty()
                    && returning.lease.may_pass_to(claim.terms, now) =>
            {
                Entered::Granted(self.take_back(key, claim, now, effects))
            }
            _ if !claim.deadline.is_one_attempt() => Entered::Occupied,
            // The reply in flight serves this acquire too, unless the attempt was sent earlier and is busy.
            Phase::Contending(Contending {
                seen: Seen::Nothing,
                ..
            }) => Entered::Occupied,
            // No waiter is ahead: a task started for earlier waiters makes the attempt.
            Phase::Contending(_) | Phase::Returning(_) if !has_patient_waiters(&self.queue) => {
                Entered::Occupied
            }
            // Another owner holds the key or is ahead.
            Phase::Held(_) | Phase::Contending(_) | Phase::Returning(_) => {
                Entered::Rejected(self.why_not(now))
            }
        }
    }

    /// Grants a surrendered lease to this acquire. No caller awaits a later report of its release.
    fn take_back(
        &mut self,
        key: &LockKey,
        claim: &Claim,
        now: Moment,
        effects: &mut Effects,
    ) -> Arc<Grant> {
        let Phase::Returning(returning) = std::mem::take(&mut self.phase) else {
            unreachable!("BUG: only a lease that is being returned is taken back");
        };
        effects.report(returning.report, Ok(()));
        self.reclaim(key, returning.lease, claim, now)
    }

    /// Ends an expired grant or return before an event reads the phase. The watchdog may be late or may
    /// have stopped.
    pub(super) fn expire(&mut self, home: RuntimeId, now: Moment, effects: &mut Effects) {
        match &self.phase {
            Phase::Held(tenure) if now >= tenure.grant.valid_until() => {
                self.lose_by_clock(home, now, effects);
            }
            Phase::Yielding { until } if now >= *until => self.phase = Phase::Idle,
            Phase::Idle | Phase::Yielding { .. } | Phase::Held(_) | Phase::Contending(_) => {}
            Phase::Returning(_) => self.forget_if_expired(now, effects),
        }
    }
}
