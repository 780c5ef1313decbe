//! An acquire of several keys, in their order.

use std::pin::Pin;
use std::sync::Arc;

use super::entry::pending::PendingAcquire;
use super::entry::{Step, enter, rejection};
use super::guard::LockGuard;
use crate::backend::Mode;
use crate::lock::clock::{Moment, Span};
use crate::lock::engine::Engine;
use crate::lock::lane::is_unanswered;
use crate::lock::lease::{Claim, Deadline, QueuePosition};
use crate::{Error, ErrorKind, LockKeys};

/// An acquire of several keys, in their order.
pub(super) struct Several {
    pub(super) engine: Arc<Engine>,
    pub(super) keys: LockKeys,
    pub(super) claim: Claim,
    /// Dropped on error or cancellation, which releases the keys acquired so far.
    pub(super) holds: Vec<LockGuard>,
}

impl Several {
    /// Acquires the further keys without waiting. Returns the acquire of the first key that has to wait, or `None` if
    /// all keys are held.
    pub(super) fn enter_rest(&mut self, now: Moment) -> Result<Option<PendingAcquire>, Error> {
        let mut one = self.claim;
        // The longest hold counts from the grant of the last key.
        one.terms.max_hold = Span::FOREVER;
        let held = self.holds.len();
        for (at, key) in (held..).zip(&self.keys.as_slice()[held..]) {
            if one.terms.mode != Mode::Permit {
                one.terms.mode = self.keys.mode(at);
            }
            // A ticket orders by arrival, and the acquire arrives at each key at another time.
            one.ticket = self.engine.next_number();
            one.served_at_shutdown = at > 0 && one.deadline != Deadline::Endless;
            match enter(&self.engine, key, &one, now) {
                Step::Done(outcome) => {
                    let engine = Arc::clone(&self.engine);
                    (self.holds).push(LockGuard::one(engine, outcome?, one.hold));
                }
                Step::Slow(pending) => return Ok(Some(pending)),
            }
        }
        Ok(None)
    }

    pub(super) async fn wait(
        mut self,
        mut pending: PendingAcquire,
        position: &mut QueuePosition,
    ) -> Result<LockGuard, Error> {
        let mut began = self.claim.since;
        loop {
            let (outcome, now) = Pin::new(&mut pending).await;
            *position = pending.queue_position().max(*position);
            let outcome = outcome.map_err(|error| self.why_not(error, began, now));
            self.holds.push(outcome?);
            began = now;
            match self.enter_rest(now)? {
                Some(next) => pending = next,
                None => return self.into_guard(now),
            }
        }
    }

    /// Returns the error of the acquire. If the waits for earlier keys took most of its time, the last reply is not late.
    fn why_not(&self, error: Error, began: Moment, now: Moment) -> Error {
        let had_time = began.since(self.claim.since) <= now.since(began);
        if had_time || self.claim.deadline.is_one_attempt() || !is_unanswered(&error) {
            return error;
        }
        let key = &self.keys.as_slice()[self.holds.len()];
        rejection(&self.engine, key, &self.claim, Error::new(ErrorKind::Busy))
    }

    /// Completes the acquire, all keys of which were granted.
    pub(super) fn into_guard(self, now: Moment) -> Result<LockGuard, Error> {
        let (engine, claim) = (&self.engine, &self.claim);
        // A fixed lease may have expired during the wait for another key.
        let all_held = self.holds.iter().all(|hold| hold.grants.are_held(now));
        let guard = all_held.then(|| LockGuard::many(engine, self.holds, claim, now));
        guard.flatten().ok_or_else(|| {
            // The holds of an acquire that is not polled in time end at its deadline, maybe since `now`.
            let is_late = claim.deadline.has_passed(engine.now());
            match self.keys.as_slice().last().filter(|_| is_late) {
                Some(key) => rejection(engine, key, claim, Error::new(ErrorKind::Busy)),
                None => Error::new(ErrorKind::Lost),
            }
        })
    }
}
