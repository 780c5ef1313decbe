//! The first attempt of an acquire that found its lane idle.
//!
//! Its reply is applied to the lane, in which the acquire is a waiter from the beginning. An acquire loop at home
//! continues after a rejection. In a runtime with several threads, the future of the acquire drives it, because a task
//! of its own would often move to another thread. A task at home drives it for all other callers.
//!
//! | the acquire that drives it | effect |
//! |---|---|
//! | is dropped | a task near the caller finishes it |
//! | is not polled for 8 ms while others wait, or is rejected | a task at home finishes it |
//!
//! | the task that drives it | effect |
//! |---|---|
//! | is dropped with its runtime | an acquire loop replaces it, and its lease is released |
//! | has no reply after one response timeout, or does not run, while others wait | the same; a lease that it acquires later is released |

use std::sync::Arc;

use super::command::{Outcome, judge};
use crate::LockKey;
use crate::backend::{Acquired, BackendError, Contended};
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::lane::{Attempt, Replied, Waiter, Work, unanswered};

/// Applies the reply to the lane. Returns the moment of the reply.
pub(crate) fn replied(
    engine: &Arc<Engine>,
    key: &LockKey,
    waiter: &Waiter,
    attempt: &Attempt,
    outcome: Result<Acquired, BackendError>,
) -> Moment {
    let (claim, number, now) = (&waiter.claim, attempt.lease, engine.now());
    let replied = Replied {
        lease: number,
        terms: claim.terms,
        sent_at: attempt.sent_at,
        now,
        outcome: outcome.map(Contended::of),
    };
    let outcome = judge(engine, key, replied);
    let was_awaited = engine.event(key, now, |lane, effects| {
        let is_awaited = lane.awaits_reply(number);
        match outcome {
            // A loop has replaced this attempt, so its lease is released.
            Outcome::Granted(lease) if !is_awaited => {
                let ttl = lease.longest(now);
                (effects.work).push(Work::ReleaseUnknown { lease: number, ttl });
            }
            _ if !is_awaited => {}
            Outcome::Granted(lease) => lane.granted(key, lease, effects),
            Outcome::Never(error) => {
                lane.refused_for_good(claim.terms.mode, &error, effects);
            }
            Outcome::NotYet(seen) => {
                let attempt = (claim.ticket, number);
                let limit = engine.options.max_waiters_per_key;
                let seat = |seat| engine.add_permit_seat(seat, key, limit);
                let may_wait = || !key.is_of_permit() || waiter.change_seat(seat);
                lane.rejected_first(attempt, seen, effects, may_wait);
            }
        }
        is_awaited
    });
    if !was_awaited {
        engine.lanes.started();
    }
    now
}

/// The task of an attempt that its acquire does not drive.
pub(crate) struct FirstAttempt {
    engine: Arc<Engine>,
    key: LockKey,
    waiter: Arc<Waiter>,
    attempt: Attempt,
    is_over: bool,
}

impl FirstAttempt {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        key: &LockKey,
        waiter: &Arc<Waiter>,
        attempt: Attempt,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            key: key.clone(),
            waiter: Arc::clone(waiter),
            attempt,
            is_over: false,
        }
    }

    pub(crate) async fn run(mut self) {
        // Only the end of the runtime drops this await.
        let outcome = (&mut self.attempt.reply).await;
        self.is_over = true;
        let (engine, key) = (&self.engine, &self.key);
        replied(engine, key, &self.waiter, &self.attempt, outcome);
    }
}

impl Drop for FirstAttempt {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (engine, key, lease) = (&self.engine, &self.key, self.attempt.lease);
        let now = engine.now();
        // The lease was released when another task replaced this one. The attempt may have taken effect since.
        if !engine.event(key, now, |lane, effects| lane.abandon(lease, effects)) {
            engine.release_until_confirmed(key, lease, unanswered(self.waiter.claim.terms.ttl));
            engine.lanes.started();
        }
    }
}
