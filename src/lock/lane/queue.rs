//! The queue of a lane: how waiters enter and leave it, and which waiters a grant serves.

pub(super) mod entering;
pub(super) mod estimate;
mod pace;
pub(crate) mod seats;
pub(crate) mod waiter;
pub(super) mod waiters;

use std::num::NonZeroU32;
use std::sync::Arc;

use super::{Effects, Lane, LastReply, Phase};
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lease::{Claim, Grant, QueuePosition, ReleasedTo, Ticket};
use crate::{Error, LockKey};
use waiter::Waiter;
use waiters::Waiters;

impl Lane {
    /// Adds a waiter. `seen` is the reply to its own last attempt.
    pub(crate) fn enqueue(&mut self, waiter: Arc<Waiter>, seen: LastReply, effects: &mut Effects) {
        let one_attempt = waiter.claim.deadline.is_one_attempt();
        self.begin_to_wait(waiter, effects.now);
        match self.phase {
            Phase::Idle => self.contend(seen, ReleasedTo::Nobody, effects),
            Phase::Yielding { .. } => {
                // Without an attempt until its deadline, the waiter is behind others.
                self.contend(LastReply::Busy(effects.now), ReleasedTo::QUEUE, effects);
            }
            // Wakes the task for an immediate attempt, even if it backs off or has lost its waiters.
            _ if one_attempt || self.queue.len() == 1 => self.wake_loop(),
            _ => {}
        }
    }

    pub(super) fn begin_to_wait(&mut self, waiter: Arc<Waiter>, now: Moment) {
        if self.waiters() == 0 {
            self.begin_queue(now);
        }
        self.queue.insert(waiter);
    }

    /// Returns the position of the acquire with this ticket in the queue.
    pub(crate) fn position(&self, ticket: Ticket) -> QueuePosition {
        let position = self.queue.up_to(ticket);
        NonZeroU32::new(u32::try_from(position).unwrap_or(u32::MAX))
    }

    /// Removes a waiter. Returns `false` if it was already granted or rejected.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        let was_first = self.queue.first().map(|first| first.claim.ticket) == Some(ticket);
        let left = self.queue.remove(ticket).is_some();
        if left && was_first {
            self.wake_loop();
        }
        left
    }

    /// Returns the claim of the first waiter whose deadline has not passed. Rejects earlier ones, whose
    /// futures are not polled.
    pub(super) fn first(&mut self, effects: &mut Effects) -> Option<&Claim> {
        while let Some(first) = self.queue.first()
            && first.claim.deadline.has_passed(effects.now)
            && let Some(waiter) = self.queue.pop_first()
        {
            effects.reject(waiter, self.why_not(effects.now));
        }
        self.queue.first().map(|first| &first.claim)
    }

    /// Returns `true` if a waiter needs an attempt now, during any backoff.
    pub(super) fn wants_attempt_now(&self) -> bool {
        (self.queue.iter()).any(|waiter| waiter.claim.deadline.is_one_attempt())
    }

    /// Rejects the waiters that `which` selects, with the error that `why` returns. Wakes a loop that has lost all.
    pub(crate) fn reject_if(
        &mut self,
        effects: &mut Effects,
        why: impl FnOnce(&mut Self, Moment) -> Error,
        which: impl Fn(&Claim) -> bool,
    ) {
        if !self.queue.iter().any(|waiter| which(&waiter.claim)) {
            return;
        }
        let error = why(self, effects.now);
        for waiter in self.queue.remove_if(which) {
            effects.reject(waiter, error.clone());
        }
        // The loop of the others attempts when it is due: a wake-up at each deadline would make it attempt before the next one.
        if self.queue.is_empty() {
            self.wake_loop();
        }
    }

    /// Rejects the waiters whose deadline has passed. Their futures have timers only if nothing
    /// ensures that the home runs.
    pub(crate) fn reject_late(&mut self, effects: &mut Effects) {
        if self
            .queue
            .deadline()
            .is_none_or(|first| first > effects.now)
        {
            return;
        }
        let now = effects.now;
        self.reject_if(effects, Self::why_not, |claim| {
            claim.deadline.has_passed(now)
        });
        self.queue.update_deadline();
    }

    /// Grants a hold to each queued acquire of the owner, which would otherwise wait for itself. A fresh
    /// owner has no other acquire.
    pub(super) fn grant_companions(
        &mut self,
        granted: &Claim,
        grant: &Arc<Grant>,
        effects: &mut Effects,
    ) {
        if granted.is_owner_fresh {
            return;
        }
        for waiter in self.queue.remove_if(|claim| claim.owner == granted.owner) {
            let Phase::Held(held_lease) = &mut self.phase else {
                unreachable!("BUG: companions share a grant");
            };
            let claim = waiter.claim;
            match held_lease.nest(&claim, effects.now) {
                Some(Ok(_)) => {
                    held_lease.expect_pick_up(&claim);
                    effects.grant(waiter, grant, true);
                }
                Some(Err(kind)) => effects.reject(waiter, Error::new(kind)),
                None => unreachable!("BUG: companions have one owner"),
            }
        }
    }

    /// Lets the first waiters share the lease, up to the first one that may not.
    #[inline]
    pub(crate) fn admit(&mut self, key: &LockKey, effects: &mut Effects) {
        if self.mode() == Mode::Shared {
            self.admit_shared(key, effects);
        }
    }

    fn admit_shared(&mut self, key: &LockKey, effects: &mut Effects) {
        while let Some(first) = self.first(effects).copied()
            && let Phase::Held(held_lease) = &mut self.phase
            && held_lease.admits(&first, effects.now)
            && let Some(waiter) = self.queue.pop_first()
        {
            let grant = held_lease.join(key, &first, effects.now);
            held_lease.expect_pick_up(&first);
            self.queue.pace_mut().advance(effects.now);
            effects.grant(waiter, &grant, true);
            self.grant_companions(&first, &grant, effects);
        }
    }
}

/// Returns `true` if a waiter waits for more than one attempt.
pub(super) fn has_patient_waiters(queue: &Waiters) -> bool {
    (queue.iter()).any(|waiter| !waiter.claim.deadline.is_one_attempt())
}
