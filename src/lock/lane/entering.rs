//! How an acquire enters a lane.

use std::sync::Arc;

use super::state::{Contending, Elsewhere, Lane, Phase, Seen};
use crate::lock::claim::Claim;
use crate::lock::clock::Moment;
use crate::lock::effect::Effects;
use crate::lock::grant::Grant;
use crate::lock::options::MAX_HOLD_COUNT;
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// How an acquire enters the lane.
#[derive(Debug)]
pub(in crate::lock) enum Entered {
    Granted(Arc<Grant>),
    /// The owner holds it once more.
    Nested(Arc<Grant>),
    /// The lane is idle: the acquire makes the first attempt.
    Idle,
    /// Others are before it. Nothing has changed.
    Occupied,
    Rejected(Error),
}

impl Lane {
    /// An acquire asks for the key.
    pub(in crate::lock) fn enter(
        &mut self,
        key: &LockKey,
        claim: &Claim,
        now: Moment,
        effects: &mut Effects,
    ) -> Entered {
        self.expire(claim.home, now, effects);
        let has_patient_waiters = self.has_patient_waiters();
        match &mut self.phase {
            Phase::Idle => Entered::Idle,
            Phase::Held(tenure)
                if tenure.grant.owner() == claim.owner.get() && tenure.grant.is_held(now) =>
            {
                if tenure.grant.holds() >= MAX_HOLD_COUNT {
                    return Entered::Rejected(Error::new(ErrorKind::ReentrancyLimit));
                }
                tenure.nest(claim, now);
                if self.home != Some(claim.home) {
                    tenure.add_home(claim.home);
                    self.elsewhere = Elsewhere::NEW;
                }
                if claim.grouped {
                    tenure.expect_pick_up(claim);
                }
                Entered::Nested(Arc::clone(&tenure.grant))
            }
            Phase::Returning(returning)
                if !returning.sent
                    && self.queue.is_empty()
                    && returning.lease.may_pass_to(claim.terms, now) =>
            {
                Entered::Granted(self.take_back(key, *claim, now, effects))
            }
            _ if !claim.deadline.is_one_attempt() => Entered::Occupied,
            // Its reply is the answer to this one, too, unless it was sent before and says busy.
            Phase::Contending(Contending {
                seen: Seen::Nothing,
                ..
            }) => Entered::Occupied,
            // Nobody is before it: a task of those that have left makes the attempt.
            Phase::Contending(_) | Phase::Returning(_) if !has_patient_waiters => Entered::Occupied,
            // Others hold it, or are before it.
            Phase::Held(_) | Phase::Contending(_) | Phase::Returning(_) => {
                Entered::Rejected(self.why_not(now))
            }
        }
    }

    /// The lease of which nobody waits for the return goes on with this acquire.
    fn take_back(
        &mut self,
        key: &LockKey,
        claim: Claim,
        now: Moment,
        effects: &mut Effects,
    ) -> Arc<Grant> {
        let Phase::Returning(returning) = std::mem::take(&mut self.phase) else {
            unreachable!("BUG: only a lease that is being returned is taken back");
        };
        effects.report(returning.report, Ok(()));
        self.hand_on(key, returning.lease, claim, now)
    }

    /// Ends what the clock has ended, before an event looks at the phase: the watchdog may not have come
    /// by, and may never come.
    pub(super) fn expire(&mut self, home: RuntimeId, now: Moment, effects: &mut Effects) {
        if let Phase::Held(tenure) = &self.phase
            && now >= tenure.grant.valid_until()
        {
            self.lose_by_clock(home, now, effects);
        }
        self.forget_if_expired(now, effects);
    }
}
