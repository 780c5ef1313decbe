//! The entry of an acquire into a lane.

use std::sync::Arc;

use super::has_patient_waiters;
use crate::lock::clock::Moment;
use crate::lock::lane::{Contending, Effects, Lane, LastReply, Phase};
use crate::lock::lease::{Claim, Grant};
use crate::{Error, LockKey};

/// The result of an acquire's entry.
#[derive(Debug)]
pub(crate) enum Entered {
    /// The owner has a hold, or one more.
    Granted(Arc<Grant>),
    /// The lane is idle, so the acquire makes the first attempt.
    Idle,
    /// Other acquires are ahead. The lane is unchanged.
    Occupied,
    Rejected(Error),
}

impl Lane {
    /// Enters an acquire, or returns why it has to wait.
    pub(crate) fn enter(&mut self, key: &LockKey, claim: &Claim, effects: &mut Effects) -> Entered {
        self.expire(effects);
        if let Phase::Held(_) = self.phase
            && let Some(entered) = self.enter_held(key, claim, effects.now)
        {
            return entered.map_or_else(Entered::Rejected, Entered::Granted);
        }
        if self.is_returning()
            && let Some(grant) = self.take_back(key, claim, effects)
        {
            return Entered::Granted(grant);
        }
        match &mut self.phase {
            Phase::Idle => Entered::Idle,
            // A single attempt cannot wait for a turn.
            Phase::Yielding { .. } if claim.deadline.is_one_attempt() => Entered::Idle,
            Phase::Yielding { .. } => Entered::Occupied,
            _ if !claim.deadline.is_one_attempt() => Entered::Occupied,
            // The reply in flight serves this acquire too, unless the attempt was sent earlier and is busy.
            Phase::Contending(Contending {
                seen: LastReply::Nothing,
                ..
            }) => Entered::Occupied,
            // No waiter is ahead: a task started for earlier waiters makes the attempt.
            Phase::Contending(_) | Phase::Returning(_) if !has_patient_waiters(&self.queue) => {
                Entered::Occupied
            }
            // Another owner holds the key or is ahead.
            Phase::Held(_) | Phase::Contending(_) | Phase::Returning(_) => {
                Entered::Rejected(self.why_not(effects.now))
            }
        }
    }

    /// Takes back the lease that is being returned. If that is not possible, a kept lease is surrendered.
    #[cold]
    fn take_back(
        &mut self,
        key: &LockKey,
        claim: &Claim,
        effects: &mut Effects,
    ) -> Option<Arc<Grant>> {
        let Phase::Returning(returning) = &mut self.phase else {
            return None;
        };
        let via = returning.taken_back(claim.terms, effects.now);
        let Some(via) = via.filter(|_| self.queue.is_empty()) else {
            returning.surrender(effects);
            return None;
        };
        let (lease, report) = self.take_lease();
        // No caller awaits a later report of its release.
        effects.report(report, Ok(()));
        Some(self.hold(key, lease, via, claim, effects.now))
    }

    /// Adds a hold to a lease that this process holds, or lets another owner share it. Returns `None` if the acquire has
    /// to wait.
    #[inline(always)]
    pub(crate) fn enter_held(
        &mut self,
        key: &LockKey,
        claim: &Claim,
        now: Moment,
    ) -> Option<Result<Arc<Grant>, Error>> {
        let Phase::Held(held_lease) = &mut self.phase else {
            return None;
        };
        match held_lease.nest(claim, now) {
            Some(Ok(grant)) => {
                if claim.of_several {
                    held_lease.expect_pick_up(claim);
                }
                Some(Ok(grant))
            }
            Some(Err(kind)) => Some(Err(Error::new(kind))),
            // An acquire that waits, whichever its mode, comes first.
            None if held_lease.admits(claim, now) && self.queue.is_empty() => {
                Some(Ok(held_lease.join(key, claim, now)))
            }
            None => None,
        }
    }

    /// Ends overdue holds, an expired return or the turn of others before an event reads the phase. The watchdog, whose
    /// checks call it as well, may be late or may have stopped.
    #[inline]
    pub(crate) fn expire(&mut self, effects: &mut Effects) {
        match &self.phase {
            Phase::Held(held_lease) if effects.now >= held_lease.ends_by() => {
                self.end_overdue(effects);
            }
            Phase::Yielding { until } if effects.now >= *until => self.phase = Phase::Idle,
            Phase::Idle | Phase::Yielding { .. } | Phase::Held(_) | Phase::Contending(_) => {}
            Phase::Returning(_) => self.forget_if_expired(effects),
        }
    }
}
