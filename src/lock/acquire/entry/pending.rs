//! An acquire of one key that waits: for the reply to its first attempt, or in the queue.

use std::future::{self, Future};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::{Step, enter, rejection};
use crate::backend::BoxFuture;
use crate::lock::acquire::guard::LockGuard;
use crate::lock::clock::Moment;
use crate::lock::clock::timeout::by;
use crate::lock::engine::Engine;
use crate::lock::lane::{Answer, Given, Waiter};
use crate::lock::lease::QueuePosition;
use crate::lock::tasks::first_attempt::{FirstAttempt, replied};
use crate::observe::Name;
use crate::task::with_caller_context;
use crate::{Error, LockKey};

/// An acquire of one key that has to wait. If dropped, it leaves the queue at once, and a task finishes
/// an attempt in flight.
///
/// A hand-written future: async functions would store copies of their arguments at each level, and
/// thousands of these can wait at a time.
pub(crate) struct PendingAcquire {
    pub(super) engine: Arc<Engine>,
    pub(super) key: LockKey,
    pub(super) waiter: Arc<Waiter>,
    /// Only for a runtime of the program as home, which may not run. Boxed because it is rare.
    pub(super) timer: Option<BoxFuture<Option<()>>>,
    pub(super) queue_position: QueuePosition,
    /// Whether the acquire drives its first attempt, which is in the waiter, unless home has taken it.
    pub(super) drives: bool,
    pub(super) is_over: bool,
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        if !self.is_over {
            let now = self.engine.now();
            self.leave(now);
            // A hold that was granted concurrently is released.
            if let Some(Ok(given)) = self.waiter.close() {
                drop(self.pick_up(given, now));
            }
        }
        if self.drives || !self.is_over {
            self.finish_attempt();
        }
    }
}

impl PendingAcquire {
    /// Begins to wait, outside of the mutex under which this was created.
    pub(super) fn begin(&mut self, now: Moment) {
        let (home, until) = (&self.engine.home, self.waiter.claim.deadline.moment());
        let until = until.filter(|_| home.may_not_run());
        self.timer =
            until.map(|until| Box::pin(by(home.clock, until, now, future::pending())) as _);
        if !self.drives {
            self.finish_attempt();
        }
    }

    /// Leaves the first attempt, if it is here, to a task.
    fn finish_attempt(&self) {
        if let Some(attempt) = self.waiter.take_attempt() {
            let task = FirstAttempt::new(&self.engine, &self.key, &self.waiter, attempt);
            (self.engine.home).spawn_near(with_caller_context(task.run()));
        }
    }

    /// Returns the engine that reports the acquire, and its name.
    pub(crate) fn reporter(&self) -> (&Arc<Engine>, Name) {
        (&self.engine, self.waiter.claim.name)
    }

    pub(crate) fn queue_position(&self) -> QueuePosition {
        self.queue_position
    }

    /// Drives the first attempt, whose reply resolves this acquire, and polls the answer. Completes with its moment.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<(Answer, Moment)> {
        let (mut unanswered, mut replied_at) = (None, None);
        if self.drives {
            let polled = self.waiter.begin_poll().map(|mut attempt| {
                let reply = attempt.reply.as_mut().poll(cx);
                (attempt, reply)
            });
            match polled {
                Some((attempt, Poll::Pending)) => unanswered = Some(attempt),
                Some((attempt, Poll::Ready(outcome))) => {
                    self.drives = false;
                    let (engine, key) = (&self.engine, &self.key);
                    replied_at = Some(replied(engine, key, &self.waiter, &attempt, outcome));
                }
                None => self.drives = false,
            }
        }
        let answered = self.waiter.poll(unanswered, cx);
        answered.map(|answer| (answer, replied_at.unwrap_or_else(|| self.engine.now())))
    }

    /// Leaves the queue. Returns `false` if the acquire was granted or rejected concurrently.
    fn leave(&self, now: Moment) -> bool {
        let key = &self.key;
        self.engine.event(key, now, |lane, effects| {
            let has_left = lane.leave(self.waiter.claim.ticket);
            lane.admit(key, effects);
            has_left
        })
    }

    /// Creates the hold of the waiter, or returns `None` if its grant was withdrawn.
    fn pick_up(&self, given: Given, now: Moment) -> Option<LockGuard> {
        let (engine, claim, grant) = (&self.engine, &self.waiter.claim, given.grant);
        let hold = claim.hold;
        let picked_up = claim.of_several
            || match grant.first_hold == hold {
                // No other acquire shares the flag.
                true => grant.settle(),
                false => engine.event(grant.key(), now, |lane, _| lane.picked_up(&grant, hold)),
            };
        picked_up.then(|| LockGuard::one(Arc::clone(engine), grant, hold))
    }

    /// Returns the result of the acquire, or `None` if it waits again after a grant that came too late.
    fn picked_up(&mut self, given: Given, now: Moment) -> Option<Result<LockGuard, Error>> {
        let (engine, key, claim) = (&self.engine, &self.key, &self.waiter.claim);
        match self.pick_up(given, now) {
            Some(guard) if guard.grants.are_held(now) => return Some(Ok(guard)),
            // This future was not polled before its deadline.
            None if claim.deadline.has_passed(now) => {
                return Some(Err(engine.event(key, now, |lane, _| lane.why_not(now))));
            }
            // The process was paused after the grant.
            late => drop(late),
        }
        match enter(engine, key, claim, now) {
            Step::Done(outcome) => {
                Some(outcome.map(|grant| LockGuard::one(Arc::clone(engine), grant, claim.hold)))
            }
            Step::Slow(next) => {
                let position = self.queue_position;
                *self = next;
                self.queue_position = self.queue_position.or(position);
                None
            }
        }
    }
}

/// Completes with the moment of the end, for which most ends have read the clock.
impl Future for PendingAcquire {
    type Output = (Result<LockGuard, Error>, Moment);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let (answered, now) = match this.poll_answer(cx) {
                Poll::Ready(answered) => answered,
                Poll::Pending => {
                    let Some(timer) = &mut this.timer else {
                        return Poll::Pending;
                    };
                    ready!(timer.as_mut().poll(cx));
                    this.timer = None;
                    // The watchdog may not run.
                    let now = this.engine.now();
                    let error = (this.engine).event(&this.key, now, |lane, _| lane.why_not(now));
                    if !this.leave(now) {
                        // The concurrent grant or rejection wakes this future.
                        return Poll::Pending;
                    }
                    (Err(error), now)
                }
            };
            this.is_over = true;
            let outcome = match answered {
                Ok(given) => {
                    if given.queued {
                        // Its own first attempt came before all that queue.
                        this.queue_position.get_or_insert(NonZeroU32::MIN);
                    }
                    match this.picked_up(given, now) {
                        Some(outcome) => outcome,
                        None => continue,
                    }
                }
                Err(error) => {
                    if this.waiter.claim.deadline.has_passed(now) {
                        this.queue_position.get_or_insert(NonZeroU32::MIN);
                    }
                    Err(error)
                }
            };
            let (engine, claim) = (&this.engine, &this.waiter.claim);
            #[cfg(feature = "dashboard")]
            if this.queue_position.is_some() {
                let waited = now.since(claim.since);
                engine.hot.waited(this.key.stored(), waited);
            }
            let outcome = outcome.map_err(|error| rejection(engine, &this.key, claim, error));
            return Poll::Ready((outcome, now));
        }
    }
}

#[cfg(test)]
mod tests;
