//! How an acquire gets into the lane of one key: at once, by its own first try, or through the queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep_until};

use super::contender::{Contention, Driver, Tried};
use super::engine::{Engine, refuse};
use super::guard::Hold;
use super::lane::Lane;
use super::moment::Moment;
use super::order::{Claim, Entered, Seen, Waiter};
use super::releaser::tell;
use crate::{Error, ErrorKind, LockKey};

/// One step on the way to one key, as far as it goes without waiting.
pub(super) enum Step {
    Done(Result<Hold, Error>),
    Slow(Stage),
}

/// What the acquire waits for.
pub(super) enum Stage {
    /// The answer to the first try, which is on the wire.
    Driving(Box<Driver>),
    /// Nothing: its first try has failed, and it is not in the queue yet.
    Tried(Box<(Driver, Seen)>),
    /// Nothing: others are before it, and it is not in the queue yet.
    Occupied,
    /// Its turn.
    Queued(Answer),
    Over,
}

type Answer = oneshot::Receiver<Result<Hold, Error>>;

/// Enters the lane if that needs no place in its queue. `now` is read once for all that happens
/// without waiting.
pub(super) fn enter(engine: &Arc<Engine>, key: &LockKey, claim: Claim, now: Moment) -> Step {
    let entered = engine
        .lanes
        .with(key, |lane| admit(engine, lane, key, claim, now));
    match entered {
        Entered::Occupied => Step::Slow(Stage::Occupied),
        entered => entered_as(engine, key, claim, entered, now),
    }
}

/// Enters the lane, or joins its queue.
fn join(engine: &Arc<Engine>, key: &LockKey, claim: Claim) -> Step {
    let seated = seat(engine, claim);
    let now = Moment::now();
    let max_waiters = engine.options.max_waiters_per_key;
    let joined = engine
        .lanes
        .with(key, |lane| match admit(engine, lane, key, claim, now) {
            // Of two bounds, the one that says more.
            Entered::Occupied if lane.seats_taken() >= max_waiters => Err(Entered::Refused(
                lane.why_not(now).into_kind(ErrorKind::TooManyWaiters),
            )),
            Entered::Occupied => match seated {
                Ok((waiter, answer)) => Ok((lane.enqueue(waiter), answer)),
                Err(error) => Err(Entered::Refused(error)),
            },
            entered => Err(entered),
        });
    match joined {
        Ok((next, answer)) => {
            engine.follow(key, next);
            Step::Slow(Stage::Queued(answer))
        }
        Err(entered) => entered_as(engine, key, claim, entered, now),
    }
}

fn admit(engine: &Engine, lane: &mut Lane, key: &LockKey, claim: Claim, now: Moment) -> Entered {
    // Those who hold a lock already may take it again, to finish their work.
    let holds = lane
        .holder()
        .is_some_and(|held| held.owner() == claim.owner && held.is_held(now));
    if engine.is_closing() && !holds {
        return Entered::Refused(Error::new(ErrorKind::ShuttingDown));
    }
    lane.enter(key, claim, now)
}

fn entered_as(
    engine: &Arc<Engine>,
    key: &LockKey,
    claim: Claim,
    entered: Entered,
    now: Moment,
) -> Step {
    match entered {
        Entered::Granted(granted) => Step::Done(Ok(engine.hold(granted))),
        Entered::TookBack(granted, report) => {
            tell(report, Ok(()));
            Step::Done(Ok(engine.hold(granted)))
        }
        Entered::Refused(error) => Step::Done(Err(error)),
        Entered::Occupied => Step::Slow(Stage::Occupied),
        Entered::Drive => {
            let mut contention = Contention::new(Arc::clone(engine), key.clone());
            let tried = contention.try_now(claim.terms, now);
            let driver = Driver::new(contention);
            match tried {
                None => Step::Slow(Stage::Driving(Box::new(driver))),
                // It queues when there is somebody who would leave the queue again.
                Some(Tried::NotYet(seen)) if !claim.is_one_try() => {
                    Step::Slow(Stage::Tried(Box::new((driver, seen))))
                }
                Some(tried) => driven(engine, key, claim, driver, tried, now),
            }
        }
    }
}

/// What comes of the driver's try.
fn driven(
    engine: &Arc<Engine>,
    key: &LockKey,
    claim: Claim,
    driver: Driver,
    tried: Tried,
    now: Moment,
) -> Step {
    match tried {
        Tried::Granted(lease) => {
            driver.disarm();
            let (granted, refused) = engine
                .lanes
                .with(key, |lane| lane.granted_to_driver(key, claim, lease, now));
            refuse(refused);
            Step::Done(Ok(engine.hold(granted)))
        }
        Tried::NotYet(seen) if claim.is_one_try() => {
            let error = seen.error();
            driver.leave(seen);
            Step::Done(Err(error))
        }
        Tried::NotYet(seen) => queue_up(engine, claim, driver, seen),
        // For those behind it, a task finds out the same.
        Tried::Never(error) => Step::Done(Err(error)),
    }
}

/// The driver's try has failed: a task goes on, and it queues in front.
fn queue_up(engine: &Engine, claim: Claim, driver: Driver, seen: Seen) -> Step {
    match seat(engine, claim) {
        Ok((waiter, answer)) => {
            driver.queue(waiter, seen);
            Step::Slow(Stage::Queued(answer))
        }
        Err(error) => {
            driver.leave(seen);
            Step::Done(Err(error))
        }
    }
}

/// A place among all waiters of the manager.
fn seat(engine: &Engine, claim: Claim) -> Result<(Waiter, Answer), Error> {
    let seat = Arc::clone(&engine.seats)
        .try_acquire_owned()
        .map_err(|_| Error::new(ErrorKind::Overloaded))?;
    let (reply, answer) = oneshot::channel();
    let waiter = Waiter {
        claim,
        reply,
        _seat: seat,
    };
    Ok((waiter, answer))
}

pin_project! {
    /// An acquire of one key that has to wait. Dropped, it leaves the queue at once, and a try on the
    /// wire goes to a task.
    ///
    /// Not an async function: those keep a copy of what they were given at each level, and there may be
    /// ten thousand of these.
    pub(super) struct Entry {
        engine: Arc<Engine>,
        key: LockKey,
        claim: Claim,
        #[pin]
        deadline: Option<Sleep>,
        // Dropped after `drop` has left the queue: a hold that was sent by then is released.
        stage: Stage,
    }

    impl PinnedDrop for Entry {
        fn drop(this: Pin<&mut Self>) {
            if let Stage::Queued(_) = this.stage {
                let lanes = &this.engine.lanes;
                let waiter = lanes.with(&this.key, |lane| lane.leave(this.claim.ticket));
                drop(waiter);
            }
        }
    }
}

impl Entry {
    pub(super) fn new(engine: Arc<Engine>, key: LockKey, claim: Claim, stage: Stage) -> Self {
        Self {
            engine,
            key,
            claim,
            deadline: claim.patience.deadline().map(|at| sleep_until(at.into())),
            stage,
        }
    }
}

impl Future for Entry {
    type Output = Result<Hold, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (engine, key, claim) = (&*this.engine, &*this.key, *this.claim);
        loop {
            let step = match this.stage {
                Stage::Driving(driver) => match driver.poll_outcome(cx) {
                    Poll::Ready((tried, now)) => {
                        let Stage::Driving(driver) = std::mem::replace(this.stage, Stage::Over)
                        else {
                            return Poll::Pending;
                        };
                        driven(engine, key, claim, *driver, tried, now)
                    }
                    Poll::Pending => {
                        ready!(passed(this.deadline.as_mut(), cx));
                        // The driver hands its try to a task.
                        *this.stage = Stage::Over;
                        let error = Error::new(ErrorKind::Unavailable);
                        Step::Done(Err(error.with_source(NoAnswer)))
                    }
                },
                Stage::Tried(_) => match std::mem::replace(this.stage, Stage::Over) {
                    Stage::Tried(tried) => {
                        let (driver, seen) = *tried;
                        queue_up(engine, claim, driver, seen)
                    }
                    _ => return Poll::Pending,
                },
                Stage::Occupied => join(engine, key, claim),
                Stage::Queued(answer) => match Pin::new(answer).poll(cx) {
                    Poll::Ready(answer) => {
                        *this.stage = Stage::Over;
                        let answer =
                            answer.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable)));
                        match answer {
                            // The process stood still between the grant and this moment.
                            Ok(hold) if !hold.is_held() => Step::Slow(Stage::Occupied),
                            answer => Step::Done(answer),
                        }
                    }
                    Poll::Pending => {
                        ready!(passed(this.deadline.as_mut(), cx));
                        let left = engine.lanes.with(key, |lane| {
                            let waiter = lane.leave(claim.ticket)?;
                            Some((waiter, lane.why_not(Moment::now())))
                        });
                        // Otherwise served at this very moment: the answer is being sent.
                        let Some((_waiter, error)) = left else {
                            return Poll::Pending;
                        };
                        *this.stage = Stage::Over;
                        Step::Done(Err(error))
                    }
                },
                Stage::Over => return Poll::Pending,
            };
            match step {
                Step::Done(outcome) => return Poll::Ready(outcome),
                Step::Slow(stage) => *this.stage = stage,
            }
        }
    }
}

fn passed(deadline: Pin<&mut Option<Sleep>>, cx: &mut Context<'_>) -> Poll<()> {
    deadline
        .as_pin_mut()
        .map_or(Poll::Pending, |it| it.poll(cx))
}

/// The first command was still on the wire when the wait was over.
#[derive(Debug, thiserror::Error)]
#[error("the lock backend did not answer within the wait")]
struct NoAnswer;
