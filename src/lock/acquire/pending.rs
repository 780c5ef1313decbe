//! An acquire of one key that waits: for the reply to its first attempt, or in the queue.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::sync::oneshot::error::RecvError;

use super::entry::{Queued, Step, enter, pick_up, rejection};
use super::first_attempt::FirstAttempt;
use super::guard::Hold;
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::clock::timeout::next_wake;
use crate::lock::engine::Engine;
use crate::lock::lane::contending::in_place::InPlace;
use crate::lock::lane::effect::{Answer, Given};
use crate::lock::lease::claim::{Claim, QueuePosition};
use crate::lock::lease::grant::Grant;
use crate::observe::Name;
use crate::task::{Timer, with_caller_context};
use crate::{Error, LockKey};

type Answered = Result<Given, Error>;

/// An acquire of one key that has to wait. If dropped, it leaves the queue at once, and a task finishes
/// an attempt in flight.
///
/// A hand-written future: async functions would store copies of their arguments at each level, and
/// thousands of these can wait at a time.
pub(in crate::lock) struct PendingAcquire {
    engine: Arc<Engine>,
    key: LockKey,
    claim: Claim,
    /// `None` once the acquire is over.
    answer: Option<Answer>,
    /// The first attempt, until it ends or a task drives it.
    first: Option<InPlace>,
    /// Only for a runtime of the program as home, which may not run. Boxed because it is rare.
    timer: Option<Pin<Box<Timer>>>,
    queue_position: QueuePosition,
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            leave_queue(&self.engine, &self.key, &self.claim, answer);
        }
        self.finish_first();
    }
}

/// Leaves the queue. A hold that was granted concurrently is released.
fn leave_queue(engine: &Arc<Engine>, key: &LockKey, claim: &Claim, mut answer: Answer) {
    answer.close();
    drop(engine.event(key, |lane, effects| {
        let left = lane.leave(claim.ticket);
        if lane.mode() == Mode::Shared {
            lane.admit(key, engine.now(), effects);
        }
        left
    }));
    if let Ok(Ok(given)) = answer.try_recv()
        && let Some(grant) = pick_up(engine, claim, given)
    {
        drop(Hold::new(Arc::clone(engine), grant, claim.hold));
    }
}

impl PendingAcquire {
    pub(in crate::lock) fn new(
        engine: Arc<Engine>,
        key: LockKey,
        claim: Claim,
        queued: Queued,
        now: Moment,
    ) -> Self {
        let until = claim.deadline.moment();
        let until = until.filter(|_| engine.home.may_not_run());
        let timer = until.map(|until| Box::pin(Timer::at(next_wake(until, now).into())));
        let mut pending = Self {
            engine,
            key,
            claim,
            answer: None,
            first: None,
            timer,
            queue_position: None,
        };
        pending.wait(queued);
        pending
    }

    fn wait(&mut self, queued: Queued) {
        let Queued {
            answer,
            position,
            first,
        } = queued;
        self.answer = Some(answer);
        self.queue_position = position.or(self.queue_position);
        // An earlier one that had no reply in time, and that home has replaced.
        self.finish_first();
        self.first = first.and_then(FirstAttempt::begin);
    }

    /// Leaves the first attempt to a task.
    fn finish_first(&mut self) {
        if let Some(first) = self.first.take().and_then(|first| first.take()) {
            let task = with_caller_context(first.into_task());
            self.engine.home.spawn_near(task);
        }
    }

    /// Returns the engine that reports the acquire, and its name.
    pub(in crate::lock) fn reporter(&self) -> (&Arc<Engine>, Name) {
        (&self.engine, self.claim.name)
    }

    pub(in crate::lock) fn queue_position(&self) -> QueuePosition {
        self.queue_position
    }

    /// Drives the first attempt, which resolves this acquire, and polls the answer.
    ///
    /// During the poll of the attempt, the answer wakes no task. It would wake this one, which would then run once more, and
    /// a runtime wakes a second thread for that.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Answered> {
        let Some(answer) = &mut self.answer else {
            unreachable!("BUG: polled after completion");
        };
        let mut answer = Pin::new(answer);
        if let Some(first) = &self.first {
            let unwoken = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(answered) = answer.as_mut().poll(unwoken) {
                return Poll::Ready(resolved(answered));
            }
            if first.poll(cx).is_ready() {
                self.first = None;
            }
        }
        answer.poll(cx).map(resolved)
    }

    /// Leaves the queue at the end of the wait, because the watchdog may not run. Returns the error, or `None` if the
    /// acquire was granted or rejected concurrently: the result wakes this future.
    fn leave_late(&self, now: Moment) -> Option<Error> {
        let (key, claim) = (&self.key, &self.claim);
        let left = self.engine.event(key, |lane, effects| {
            let error = lane.why_not(now);
            let left = lane.leave(claim.ticket);
            lane.admit(key, now, effects);
            left.map(|waiter| (waiter, error))
        });
        // The waiter is dropped after the mutex is free.
        left.map(|(_waiter, error)| error)
    }

    /// Returns the result of the acquire, or `None` if it waits again after a grant that came too late.
    fn picked_up(&mut self, given: Given, now: Moment) -> Option<Result<Arc<Grant>, Error>> {
        let (engine, key, claim) = (&self.engine, &self.key, &self.claim);
        let late = match pick_up(engine, claim, given) {
            Some(grant) if grant.is_held(now) => return Some(Ok(grant)),
            // This future was not polled before its deadline.
            None if claim.deadline.has_passed(now) => {
                return Some(Err(engine.event(key, |lane, _| lane.why_not(now))));
            }
            late => late,
        };
        // The process was paused after the grant.
        drop(late.map(|grant| Hold::new(Arc::clone(engine), grant, claim.hold)));
        match enter(engine, key, claim, now) {
            Step::Done(outcome) => Some(outcome),
            Step::Slow(queued) => {
                self.wait(queued);
                None
            }
        }
    }
}

/// Completes with the moment of the end, for which most ends have read the clock.
impl Future for PendingAcquire {
    type Output = (Result<Hold, Error>, Moment);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let answered = match this.poll_answer(cx) {
                Poll::Ready(answered) => answered,
                Poll::Pending => {
                    ready!(wait_over(&mut this.timer, &this.claim, cx));
                    match this.leave_late(this.engine.now()) {
                        Some(error) => Err(error),
                        None => return Poll::Pending,
                    }
                }
            };
            this.answer = None;
            let now = this.engine.now();
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
                    if this.claim.deadline.has_passed(now) {
                        this.queue_position.get_or_insert(NonZeroU32::MIN);
                    }
                    Err(error)
                }
            };
            let (engine, claim) = (&this.engine, &this.claim);
            #[cfg(feature = "dashboard")]
            if this.queue_position.is_some() {
                let waited = now.since(claim.since);
                engine.hot.waited(this.key.stored(), waited);
            }
            let outcome = match outcome {
                Ok(grant) => Ok(Hold::new(Arc::clone(engine), grant, claim.hold)),
                Err(error) => Err(rejection(engine, &this.key, claim, error)),
            };
            return Poll::Ready((outcome, now));
        }
    }
}

fn resolved(answered: Result<Answered, RecvError>) -> Answered {
    match answered {
        Ok(answered) => answered,
        Err(_) => unreachable!("BUG: a waiter was dropped unresolved"),
    }
}

/// Completes at the deadline, if there is a timer.
fn wait_over(timer: &mut Option<Pin<Box<Timer>>>, claim: &Claim, cx: &mut Context<'_>) -> Poll<()> {
    let (Some(timer), Some(until)) = (timer, claim.deadline.moment()) else {
        return Poll::Pending;
    };
    loop {
        ready!(timer.as_mut().poll(cx));
        let now = claim.clock.now();
        if now >= until {
            return Poll::Ready(());
        }
        timer.as_mut().reset(next_wake(until, now).into());
    }
}

#[cfg(test)]
mod tests;
