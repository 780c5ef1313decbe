//! The entry of an acquire into the lane of one key: by its own first attempt, or through the queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep_until};

use super::attempt::{Answer, Attempt, InFlight, Inline, InlineAttempt, Replied};
use super::claim::{Claim, Deadline};
use super::clock::Moment;
use super::contender::{AcquireLoop, Outcome, attempt_now, judge, send};
use super::effect::{Effects, Given, PickUp, Work};
use super::engine::Engine;
use super::grant::Grant;
use super::guard::Hold;
use super::lane::{Entered, Lane, Seen, Waiter};
use super::lease::LeaseNumber;
use super::timeout::next_wake;
use crate::{Error, ErrorKind, LockKey};

/// The result of one step of an acquire, which proceeds as far as possible without waiting.
pub(super) enum Step {
    Done(Result<Hold, Error>),
    Slow(Stage),
}

/// The event for which the acquire waits.
pub(super) enum Stage {
    /// The reply to its first attempt, which is in flight.
    Attempting(Arc<InlineAttempt>),
    /// A grant or a rejection as a waiter.
    Queued(Answer),
    Over,
}

/// The result of the first event of an acquire.
enum Start {
    Granted(Arc<Grant>),
    Nested(Arc<Grant>),
    Queued(Answer),
    Rejected(Error),
    /// The lane was idle, and the caller has to send the attempt.
    Send(Arc<InlineAttempt>),
}

/// Enters the lane or joins its queue. All steps without waiting share one reading of the clock, `now`.
pub(super) fn enter(engine: &Arc<Engine>, key: &LockKey, claim: &Claim, now: Moment) -> Step {
    let start = engine.event(key, move |lane, effects| {
        start(engine, lane, key, claim, now, effects)
    });
    match start {
        Start::Granted(grant) => Step::Done(Ok(hold(engine, claim, grant))),
        Start::Nested(grant) => Step::Done(Ok(nested(engine, claim, grant))),
        Start::Queued(answer) => Step::Slow(Stage::Queued(answer)),
        Start::Rejected(error) => Step::Done(Err(error)),
        Start::Send(inline) => match engine.seat() {
            Ok(seat) => {
                let attempt = send(engine, key, engine.new_lease_id(), claim.terms);
                *inline.state() = Inline::InFlight(Box::new(InFlight {
                    attempt,
                    claim: *claim,
                    seat,
                    waker: Waker::noop().clone(),
                }));
                Step::Slow(Stage::Attempting(inline))
            }
            Err(overloaded) => {
                leave_inline(engine, key, claim, None, Seen::Nothing);
                Step::Done(Err(overloaded))
            }
        },
    }
}

/// Creates the hold of an immediate grant. A grouped grant is picked up later, with the others.
fn hold(engine: &Arc<Engine>, claim: &Claim, grant: Arc<Grant>) -> Hold {
    if !claim.grouped {
        grant.pick_up();
    }
    Hold::new(Arc::clone(engine), grant, claim.hold)
}

fn nested(engine: &Arc<Engine>, claim: &Claim, grant: Arc<Grant>) -> Hold {
    Hold::new(Arc::clone(engine), grant, claim.hold)
}

/// Creates the hold of a waiter. Returns `None` if the grant was withdrawn.
fn pick_up(engine: &Arc<Engine>, claim: &Claim, given: Given) -> Option<Hold> {
    let Given { grant, pick_up } = given;
    let picked_up = match pick_up {
        _ if claim.grouped => true,
        PickUp::Flag => grant.pick_up(),
        PickUp::Event => {
            let now = Moment::now();
            engine.event(grant.key(), |lane, _| lane.picked_up(&grant, claim, now))
        }
    };
    picked_up.then(|| Hold::new(Arc::clone(engine), grant, claim.hold))
}

fn start(
    engine: &Arc<Engine>,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
    effects: &mut Effects,
) -> Start {
    match admit(engine, lane, key, claim, now, effects) {
        Entered::Granted(grant) => Start::Granted(grant),
        Entered::Nested(grant) => Start::Nested(grant),
        Entered::Idle => attempt(engine, lane, key, claim, now, effects),
        Entered::Occupied => queue(engine, lane, claim, Seen::Nothing, now, effects),
        Entered::Rejected(error) => Start::Rejected(error),
    }
}

/// Makes the first attempt, in an idle lane.
fn attempt(
    engine: &Arc<Engine>,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
    effects: &mut Effects,
) -> Start {
    let lease = engine.new_lease_id();
    // A backend in this process replies under the mutex of the lane, so no other event intervenes.
    let Some(replied) = attempt_now(engine, key, lease, claim.terms, now) else {
        let inline = Arc::<InlineAttempt>::default();
        lane.contend_inline(&inline, claim, now);
        return Start::Send(inline);
    };
    let (outcome, unresolved) = judge(engine, replied);
    if let Some((lease, ttl)) = unresolved {
        let home = claim.home;
        effects.work.push(Work::Resolve { lease, ttl, home });
    }
    match outcome {
        Outcome::Granted(lease) => {
            Start::Granted(lane.granted_inline(key, claim, lease, now, effects))
        }
        Outcome::NotYet(seen) if claim.deadline.is_one_attempt() => {
            Start::Rejected(seen.error(now))
        }
        Outcome::NotYet(seen) => queue(engine, lane, claim, seen, now, effects),
        Outcome::Never(error) => Start::Rejected(error),
    }
}

/// Joins the queue. `seen` is the reply to the acquire's own last attempt.
fn queue(
    engine: &Engine,
    lane: &mut Lane,
    claim: &Claim,
    seen: Seen,
    now: Moment,
    effects: &mut Effects,
) -> Start {
    // If both bounds are reached, this error is more precise.
    if lane.seats_taken() >= engine.options.max_waiters_per_key {
        let error = lane.why_not(now).into_kind(ErrorKind::TooManyWaiters);
        return Start::Rejected(error);
    }
    match engine.seat() {
        Ok(seat) => {
            let (reply, answer) = oneshot::channel();
            let waiter = Waiter {
                claim: *claim,
                reply,
                _seat: seat,
            };
            lane.enqueue(waiter, seen, now, effects);
            Start::Queued(answer)
        }
        Err(overloaded) => Start::Rejected(overloaded),
    }
}

fn admit(
    engine: &Engine,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
    effects: &mut Effects,
) -> Entered {
    // During a shutdown, an owner may re-enter its lock to finish its work.
    let holds = || {
        (lane.holder()).is_some_and(|held| held.owner() == claim.owner.get() && held.is_held(now))
    };
    if engine.is_closing() && !holds() {
        return Entered::Rejected(Error::new(ErrorKind::ShuttingDown));
    }
    lane.enter(key, claim, now, effects)
}

/// Applies the reply to the first attempt.
fn attempted(
    engine: &Arc<Engine>,
    key: &LockKey,
    in_flight: Box<InFlight>,
    replied: Replied,
) -> Step {
    let InFlight { claim, seat, .. } = *in_flight;
    let now = replied.now;
    let (outcome, unresolved) = judge(engine, replied);
    if let Some((lease, ttl)) = unresolved {
        engine.resolve(key, lease, ttl, claim.home);
    }
    match outcome {
        Outcome::Granted(lease) => {
            let grant = engine.event(key, |lane, effects| {
                lane.granted_inline(key, &claim, lease, now, effects)
            });
            Step::Done(Ok(hold(engine, &claim, grant)))
        }
        Outcome::NotYet(seen) if claim.deadline.is_one_attempt() => {
            let error = seen.error(now);
            leave_inline(engine, key, &claim, None, seen);
            Step::Done(Err(error))
        }
        Outcome::NotYet(seen) => {
            let (reply, answer) = oneshot::channel();
            let waiter = Waiter {
                claim,
                reply,
                _seat: seat,
            };
            engine.event(key, |lane, effects| {
                lane.inline_queues(waiter, seen, now, effects);
                // Under the mutex: `close` finds the waiter in the queue, unless the flag is already set.
                if engine.is_closing() {
                    lane.dismiss(&Error::new(ErrorKind::ShuttingDown), effects);
                }
            });
            Step::Slow(Stage::Queued(answer))
        }
        // A task makes another attempt for the waiters.
        Outcome::Never(error) => {
            leave_inline(engine, key, &claim, None, Seen::Nothing);
            Step::Done(Err(error))
        }
    }
}

/// Ends the inline acquire, after a rejected attempt with the reply `seen`, or with it in flight.
fn leave_inline(
    engine: &Arc<Engine>,
    key: &LockKey,
    claim: &Claim,
    attempt: Option<Attempt>,
    seen: Seen,
) {
    let home = claim.home;
    let in_flight = attempt
        .as_ref()
        .map(|attempt| (LeaseNumber::of(attempt.lease), attempt.terms.ttl));
    let now = Moment::now();
    let wakeup = engine.event(key, |lane, effects| {
        lane.inline_leaves(in_flight, seen, home, now, engine.stuck_at(now), effects)
    });
    if let (Some(wakeup), Some(attempt)) = (wakeup, attempt) {
        AcquireLoop::new(engine, key, home, wakeup)
            .with_attempt(attempt)
            .spawn(0);
    }
}

pin_project! {
    /// An acquire of one key that has to wait. If dropped, it leaves the queue at once, and a task finishes
    /// an attempt in flight.
    ///
    /// A hand-written future: async functions would store copies of their arguments at each level, and
    /// thousands of these can wait at a time.
    pub(super) struct PendingAcquire {
        engine: Arc<Engine>,
        key: LockKey,
        claim: Claim,
        #[pin]
        timer: Option<Sleep>,
        stage: Stage,
    }

    impl PinnedDrop for PendingAcquire {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let (engine, key, claim) = (&*this.engine, &*this.key, &*this.claim);
            match std::mem::replace(this.stage, Stage::Over) {
                Stage::Attempting(inline) => {
                    let state = std::mem::take(&mut *inline.state());
                    match state {
                        Inline::InFlight(in_flight) => {
                            let attempt = Some(in_flight.attempt);
                            leave_inline(engine, key, claim, attempt, Seen::Nothing);
                        }
                        Inline::TakenOver(answer) => leave_queue(engine, key, claim, answer),
                        Inline::Empty => {}
                    }
                }
                Stage::Queued(answer) => leave_queue(engine, key, claim, answer),
                Stage::Over => {}
            }
        }
    }
}

/// Leaves the queue. A hold that was granted concurrently is released.
fn leave_queue(engine: &Arc<Engine>, key: &LockKey, claim: &Claim, mut answer: Answer) {
    engine.event(key, |lane, _| lane.leave(claim.ticket));
    answer.close();
    if let Ok(Ok(given)) = answer.try_recv() {
        drop(pick_up(engine, claim, given));
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
        // An attempt may be over before it needs a timer.
        let until = match stage {
            Stage::Queued(_) => claim.deadline.moment(),
            Stage::Attempting(_) | Stage::Over => None,
        };
        Self {
            engine,
            key,
            claim,
            timer: until.map(|until| sleep_until(next_wake(until, now).into())),
            stage,
        }
    }
}

impl Future for PendingAcquire {
    type Output = Result<Hold, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (engine, key, claim) = (&*this.engine, &*this.key, &*this.claim);
        loop {
            let step = match this.stage {
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
                                attempted(engine, key, in_flight, replied)
                            } else {
                                drop(state);
                                ready!(wait_over(this.timer.as_mut(), claim.deadline, cx));
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
                                let error = Error::new(ErrorKind::Unavailable);
                                Step::Done(Err(error.with_source(NoReply)))
                            }
                        }
                        Inline::TakenOver(_) => {
                            let Inline::TakenOver(answer) = std::mem::take(&mut *state) else {
                                unreachable!("BUG: the attempt was just found taken over");
                            };
                            drop(state);
                            Step::Slow(Stage::Queued(answer))
                        }
                        Inline::Empty => unreachable!("BUG: an attempt ends once"),
                    }
                }
                Stage::Queued(answer) => match Pin::new(&mut *answer).poll(cx) {
                    Poll::Ready(Ok(Ok(given))) => {
                        *this.stage = Stage::Over;
                        let picked_up = pick_up(engine, claim, given);
                        let now = Moment::now();
                        match picked_up {
                            Some(hold) if hold.is_held(now) => Step::Done(Ok(hold)),
                            // This future was not polled before its deadline.
                            None if claim.deadline.has_passed(now) => {
                                let error = engine.event(key, |lane, _| lane.why_not(now));
                                Step::Done(Err(error))
                            }
                            // The process was paused after the grant.
                            Some(_) | None => enter(engine, key, claim, now),
                        }
                    }
                    Poll::Ready(Ok(Err(error))) => Step::Done(Err(error)),
                    Poll::Ready(Err(_)) => {
                        unreachable!("BUG: a waiter was dropped unresolved")
                    }
                    Poll::Pending => {
                        ready!(wait_over(this.timer.as_mut(), claim.deadline, cx));
                        let now = Moment::now();
                        let left = engine.event(key, |lane, _| {
                            let error = lane.why_not(now);
                            lane.leave(claim.ticket).then_some(error)
                        });
                        match left {
                            Some(error) => {
                                answer.close();
                                Step::Done(Err(error))
                            }
                            // Granted or rejected concurrently: the result will wake this future.
                            None => return Poll::Pending,
                        }
                    }
                },
                Stage::Over => panic!("polled after completion"),
            };
            match step {
                Step::Done(outcome) => {
                    *this.stage = Stage::Over;
                    return Poll::Ready(outcome);
                }
                Step::Slow(stage) => *this.stage = stage,
            }
        }
    }
}

/// Completes at the deadline.
fn wait_over(
    mut timer: Pin<&mut Option<Sleep>>,
    deadline: Deadline,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Some(until) = deadline.moment() else {
        return Poll::Pending;
    };
    loop {
        if let Some(sleep) = timer.as_mut().as_pin_mut() {
            ready!(sleep.poll(cx));
        }
        let now = Moment::now();
        if now >= until {
            return Poll::Ready(());
        }
        let next = next_wake(until, now);
        timer.set(Some(sleep_until(next.into())));
    }
}

/// The first command was in flight at the deadline.
#[derive(Debug, thiserror::Error)]
#[error("no reply from the lock backend within the wait")]
struct NoReply;
