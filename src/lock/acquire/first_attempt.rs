//! The first attempt of an acquire that found its lane idle.
//!
//! It applies the reply to the lane, in which the acquire is a waiter from the beginning. An acquire loop at home
//! continues after a rejection. In a runtime with several threads, the future of the acquire drives it, because a task
//! of its own would often move to another thread. A task at home drives it for all other callers.
//!
//! | the acquire that drives it | effect |
//! |---|---|
//! | is dropped | a task near the caller finishes it |
//! | is not polled for 8 ms while others wait | a task at home finishes it |
//!
//! | the task that drives it | effect |
//! |---|---|
//! | is dropped with its runtime | an acquire loop replaces it, and its lease is released |
//! | has no reply after one response timeout, or does not run, while others wait | the same; a lease that it acquires later is released |

use std::pin::pin;
use std::sync::Arc;

use crate::backend::LeaseId;
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::lane::contending::attempt::unanswered;
use crate::lock::lane::contending::in_place::InPlace;
use crate::lock::lane::effect::{Effects, Wakeup};
use crate::lock::lane::{Seen, Waiter};
use crate::lock::lease::LeaseNumber;
use crate::lock::lease::claim::{Terms, Ticket};
use crate::lock::tasks::command::{Outcome, judge, send};
use crate::task::with_caller_context;
use crate::{ErrorKind, LockKey};

/// The first attempt, unless it is over. If dropped before it begins, it has ended without being sent.
pub(in crate::lock) struct FirstAttempt {
    pub(super) engine: Arc<Engine>,
    pub(super) key: LockKey,
    pub(super) wakeup: Wakeup,
    pub(super) ticket: Ticket,
    pub(super) terms: Terms,
    pub(super) lease: LeaseId,
    /// When the acquire began. The lease counts from it.
    pub(super) now: Moment,
    /// Where its acquire drives it. `None` if a task at home does.
    pub(super) in_place: Option<InPlace>,
    pub(super) is_over: bool,
}

impl FirstAttempt {
    /// Begins the attempt. Returns what its acquire has to poll.
    pub(in crate::lock) fn begin(mut self) -> Option<InPlace> {
        let (engine, in_place) = (Arc::clone(&self.engine), self.in_place.take());
        let attempt = self.run();
        match &in_place {
            Some(in_place) => in_place.put(Box::pin(attempt)),
            None => engine.home.spawn(with_caller_context(attempt)),
        }
        in_place
    }

    /// Sends the attempt, and applies the reply to the lane.
    async fn run(mut self) {
        let (engine, key, wakeup) = (&self.engine, &self.key, &self.wakeup);
        // Mostly the acquire is still there.
        let is_woken = pin!(wakeup.notified()).as_mut().enable();
        if is_woken && !engine.event(key, |lane, _| lane.keeps_first(wakeup, self.now)) {
            self.is_over = true;
            return;
        }
        // Only the end of the runtime drops this await.
        let replied = send(engine, key, self.lease, self.terms, self.now).await;
        self.is_over = true;
        let (now, mode) = (replied.now, replied.terms.mode);
        let (outcome, unresolved) = judge(engine, replied);
        if let Some((lease, ttl)) = unresolved {
            engine.resolve(key, lease, unanswered(ttl));
        }
        let drove = engine.event(key, |lane, effects| {
            let drives = lane.is_driven_by(wakeup);
            match outcome {
                Outcome::Granted(lease) => lane.granted(key, wakeup, lease, now, effects),
                Outcome::Never(error) => lane.refused_for_good(wakeup, mode, &error, now, effects),
                Outcome::NotYet(seen) => {
                    let attempt = (self.ticket, LeaseNumber::of(self.lease));
                    let keeps_waiting = |waiter, seen: &Seen, effects: &mut Effects| {
                        keep_waiting(engine, key, waiter, seen, now, effects)
                    };
                    lane.refused_first(wakeup, attempt, seen, now, effects, keeps_waiting);
                }
            }
            drives
        });
        if !drove {
            engine.home.unresolved.attempt_ended();
        }
    }
}

/// Returns the acquire, which begins to wait for its turn, or rejects it if too many wait.
fn keep_waiting(
    engine: &Engine,
    key: &LockKey,
    waiter: Waiter,
    seen: &Seen,
    now: Moment,
    effects: &mut Effects,
) -> Option<Waiter> {
    let Waiter { claim, reply, seat } = waiter;
    let limit = engine.options.max_waiters_per_key;
    let Some(seat) = engine.add_permit_seat(seat, key, limit) else {
        let error = seen.error(now).into_kind(ErrorKind::TooManyWaiters);
        effects.reject(reply, error);
        return None;
    };
    Some(Waiter { claim, reply, seat })
}

impl Drop for FirstAttempt {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (engine, key, now) = (&self.engine, &self.key, self.engine.now());
        let drove = engine.event(key, |lane, effects| {
            lane.abandon(&self.wakeup, now, effects)
        });
        // The lease was released when another task replaced this one. The attempt may have taken effect since.
        if !drove {
            let ttl = unanswered(self.terms.ttl);
            engine.resolve(key, LeaseNumber::of(self.lease), ttl);
            engine.home.unresolved.attempt_ended();
        }
    }
}
