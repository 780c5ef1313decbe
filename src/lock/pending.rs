//! An acquire of one key that waits: for the reply to its first attempt, or in the queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::attempt::{Answer, InFlight, Inline, Queued, Replied, unanswered};
use super::claim::{Claim, Deadline, QueuePosition};
use super::clock::Moment;
use super::command::{Outcome, judge};
use super::engine::Engine;
use super::entry::{Stage, Step, enter, granted, leave_inline, pick_up, rejection};
use super::guard::Hold;
use super::lane::{Seen, TAKE_OVER, Waiter};
use super::timeout::next_wake;
use crate::backend::Mode;
use crate::observe::Name;
use crate::task::Timer;
use crate::{Error, ErrorKind, LockKey};

/// Applies the reply to the first attempt.
fn attempted(engine: &Arc<Engine>, key: &LockKey, in_flight: InFlight, replied: Replied) -> Step {
    let InFlight { claim, seat, .. } = in_flight;
    let now = replied.now;
    let (outcome, unresolved) = judge(engine, replied);
    if let Some((lease, ttl)) = unresolved {
        engine.resolve(key, lease, unanswered(ttl), claim.home);
    }
    match outcome {
        Outcome::Granted(lease) => {
            let grant = engine.event(key, |lane, effects| {
                lane.granted_inline(key, &claim, lease, now, effects)
            });
            Step::Done(Ok(granted(engine, &claim, grant)))
        }
        Outcome::NotYet(seen) if claim.deadline.is_one_attempt() => {
            let error = seen.error(now);
            leave_inline(engine, key, &claim, None, seen);
            Step::Done(Err(error))
        }
        Outcome::NotYet(seen) => {
            let limit = engine.options.max_waiters_per_key;
            let Some(seat) = engine.add_permit_seat(seat, key, limit) else {
                let error = seen.error(now).into_kind(ErrorKind::TooManyWaiters);
                leave_inline(engine, key, &claim, None, seen);
                return Step::Done(Err(error));
            };
            let (reply, answer) = oneshot::channel();
            let waiter = Waiter {
                claim,
                reply,
                _seat: seat,
            };
            let position = engine.event(key, |lane, effects| {
                lane.inline_queues(waiter, seen, now, effects);
                let position = lane.position(claim.ticket);
                // Under the mutex: `close` finds the waiter in the queue, unless the flag is already set.
                if engine.is_closing() {
                    lane.dismiss(&Error::new(ErrorKind::ShuttingDown), effects);
                }
                position
            });
            Step::Slow(Stage::Queued(Queued { answer, position }))
        }
        // A task makes another attempt for the waiters.
        Outcome::Never(error) => {
            leave_inline(engine, key, &claim, None, Seen::Nothing);
            Step::Done(Err(error))
        }
    }
}

/// An acquire of one key that has to wait. If dropped, it leaves the queue at once, and a task finishes
/// an attempt in flight.
///
/// A hand-written future: async functions would store copies of their arguments at each level, and
/// thousands of these can wait at a time.
pub(super) struct PendingAcquire {
    engine: Arc<Engine>,
    key: LockKey,
    claim: Claim,
    /// Boxed because an acquire that waits for ever needs none.
    timer: Option<Pin<Box<Timer>>>,
    /// Set until the first poll, if that poll needs no timer: the attempt ends, or a task takes it over and
    /// wakes this future, long before the deadline.
    begins_untimed: bool,
    queue_position: QueuePosition,
    stage: Stage,
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        let (engine, key, claim) = (&self.engine, &self.key, &self.claim);
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Attempting(inline) => {
                let state = std::mem::take(&mut *inline.state());
                match state {
                    Inline::InFlight(in_flight) => {
                        let attempt = Some(in_flight.attempt);
                        leave_inline(engine, key, claim, attempt, Seen::Nothing);
                    }
                    Inline::TakenOver(queued) => leave_queue(engine, key, claim, queued.answer),
                    Inline::Empty => {}
                }
            }
            Stage::Queued(queued) => leave_queue(engine, key, claim, queued.answer),
            Stage::Over => {}
        }
    }
}

/// Leaves the queue. A hold that was granted concurrently is released.
fn leave_queue(engine: &Arc<Engine>, key: &LockKey, claim: &Claim, mut answer: Answer) {
    answer.close();
    drop(engine.event(key, |lane, effects| {
        let left = lane.leave(claim.ticket);
        if lane.mode() == Mode::Shared {
            lane.admit(key, Moment::now(), effects);
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
    pub(super) fn new(
        engine: Arc<Engine>,
        key: LockKey,
        claim: Claim,
        stage: Stage,
        now: Moment,
    ) -> Self {
        let until = match stage {
            Stage::Queued(_) => claim.deadline.moment(),
            Stage::Attempting(_) | Stage::Over => None,
        };
        // Only a task in the caller's runtime runs whenever the caller does. The acquire of a further key of
        // a group may have moved to another runtime since its claim.
        let is_taken_over = !engine.homes.is_fixed() && !claim.grouped;
        let begins_untimed = is_taken_over && !claim.deadline.has_passed(now + 2 * TAKE_OVER);
        let timer = until.map(|until| {
            let at = next_wake(until, now).into();
            // The claim was made in this poll. A runtime that was set is not the caller's.
            Box::pin(match engine.homes.is_fixed() {
                true => Timer::at(at),
                false => Timer::in_current(claim.home, at),
            })
        });
        Self {
            engine,
            key,
            claim,
            timer,
            begins_untimed,
            queue_position: stage.queue_position(),
            stage,
        }
    }
}

impl PendingAcquire {
    /// Returns the engine that reports the acquire, and its name.
    pub(super) fn reporter(&self) -> (&Arc<Engine>, Name) {
        (&self.engine, self.claim.name)
    }

    pub(super) fn queue_position(&self) -> QueuePosition {
        self.queue_position
    }
}

/// Completes with the moment of the end, for which most ends have read the clock.
impl Future for PendingAcquire {
    type Output = (Result<Hold, Error>, Moment);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (engine, key, claim) = (&this.engine, &this.key, &this.claim);
        let _entered = engine.homes.enter();
        let needs_no_timer = std::mem::take(&mut this.begins_untimed);
        loop {
            #[cfg(feature = "dashboard")]
            let queued = matches!(this.stage, Stage::Queued(_));
            let (step, now) = match &mut this.stage {
                Stage::Attempting(inline) => {
                    let mut state = inline.state();
                    match &mut *state {
                        Inline::InFlight(in_flight) => {
                            if let Poll::Ready(replied) = in_flight.poll_reply(cx) {
                                let Inline::InFlight(in_flight) = std::mem::take(&mut *state)
                                else {
                                    unreachable!("BUG: the attempt was just polled");
                                };
                                drop(state);
                                let now = replied.now;
                                (attempted(engine, key, in_flight, replied), now)
                            } else if needs_no_timer {
                                return Poll::Pending;
                            } else {
                                let sent_at = in_flight.attempt.sent_at;
                                drop(state);
                                let timer = &mut this.timer;
                                ready!(wait_over(timer, claim.deadline, || sent_at, cx));
                                let mut state = inline.state();
                                if !matches!(&*state, Inline::InFlight(_)) {
                                    continue;
                                }
                                let Inline::InFlight(in_flight) = std::mem::take(&mut *state)
                                else {
                                    unreachable!("BUG: the attempt was just found in flight");
                                };
                                drop(state);
                                let attempt = Some(in_flight.attempt);
                                leave_inline(engine, key, claim, attempt, Seen::Nothing);
                                let now = Moment::now();
                                (Step::Done(Err(Seen::Nothing.error(now))), now)
                            }
                        }
                        Inline::TakenOver(_) => {
                            let Inline::TakenOver(queued) = std::mem::take(&mut *state) else {
                                unreachable!("BUG: the attempt was just found taken over");
                            };
                            drop(state);
                            this.queue_position = queued.position.or(this.queue_position);
                            this.stage = Stage::Queued(queued);
                            continue;
                        }
                        Inline::Empty => unreachable!("BUG: an attempt ends once"),
                    }
                }
                Stage::Queued(Queued { answer, .. }) => match Pin::new(&mut *answer).poll(cx) {
                    Poll::Ready(Ok(Ok(given))) => {
                        this.stage = Stage::Over;
                        let picked_up = pick_up(engine, claim, given);
                        let now = Moment::now();
                        let step = match picked_up {
                            Some(grant) if grant.is_held(now) => Step::Done(Ok(grant)),
                            // This future was not polled before its deadline.
                            None if claim.deadline.has_passed(now) => {
                                let error = engine.event(key, |lane, _| lane.why_not(now));
                                Step::Done(Err(error))
                            }
                            // The process was paused after the grant.
                            late => {
                                let hold = |grant| Hold::new(Arc::clone(engine), grant, claim.hold);
                                let _late = late.map(hold);
                                enter(engine, key, claim, now)
                            }
                        };
                        (step, now)
                    }
                    Poll::Ready(Ok(Err(error))) => (Step::Done(Err(error)), Moment::now()),
                    Poll::Ready(Err(_)) => {
                        unreachable!("BUG: a waiter was dropped unresolved")
                    }
                    Poll::Pending => {
                        let timer = &mut this.timer;
                        ready!(wait_over(timer, claim.deadline, Moment::now, cx));
                        let now = Moment::now();
                        let left = engine.event(key, |lane, effects| {
                            let error = lane.why_not(now);
                            let left = lane.leave(claim.ticket);
                            lane.admit(key, now, effects);
                            left.map(|waiter| (waiter, error))
                        });
                        match left {
                            Some((_waiter, error)) => {
                                answer.close();
                                (Step::Done(Err(error)), now)
                            }
                            // Granted or rejected concurrently: the result will wake this future.
                            None => return Poll::Pending,
                        }
                    }
                },
                Stage::Over => unreachable!("BUG: polled after completion"),
            };
            match step {
                Step::Done(outcome) => {
                    this.stage = Stage::Over;
                    #[cfg(feature = "dashboard")]
                    if queued {
                        engine.hot.waited(key.stored(), claim.since);
                    }
                    let outcome = match outcome {
                        Ok(grant) => Ok(Hold::new(Arc::clone(engine), grant, claim.hold)),
                        Err(error) => Err(rejection(engine, key, claim, error)),
                    };
                    return Poll::Ready((outcome, now));
                }
                Step::Slow(stage) => {
                    this.queue_position = stage.queue_position().or(this.queue_position);
                    this.stage = stage;
                }
            }
        }
    }
}

/// Completes at the deadline. Without a timer, `now` returns a moment before this call.
fn wait_over(
    timer: &mut Option<Pin<Box<Timer>>>,
    deadline: Deadline,
    now: impl FnOnce() -> Moment,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Some(until) = deadline.moment() else {
        return Poll::Pending;
    };
    let timer = timer.get_or_insert_with(|| Box::pin(Timer::at(next_wake(until, now()).into())));
    loop {
        ready!(timer.as_mut().poll(cx));
        let now = Moment::now();
        if now >= until {
            return Poll::Ready(());
        }
        timer.as_mut().reset(next_wake(until, now).into());
    }
}

#[cfg(test)]
mod tests;
