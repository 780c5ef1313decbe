//! How an acquire gets into the lane of one key: at once, by its own first try, or through the queue.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::contender::{Contention, Driver, Tried};
use super::engine::{Engine, refuse};
use super::guard::Hold;
use super::lane::Lane;
use super::order::{Claim, Entered, Seen, Ticket, Waiter};
use super::releaser::tell;
use crate::{Error, ErrorKind, LockKey};

async fn by<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// One step on the way to one key, as far as it goes without waiting.
// Moved at once into the caller's future, or into the box of the slow path.
#[allow(clippy::large_enum_variant)]
pub(super) enum Step {
    Done(Result<Hold, Error>),
    Slow(Slow),
}

pub(super) enum Slow {
    /// The first try is on the wire.
    Drive(Driver),
    /// It was made, without success.
    Tried(Driver, Seen),
    /// Others are before us.
    Occupied,
    Queued(Queued),
}

/// Enters the lane if that needs no place in its queue. `now` is read once for all that happens
/// without waiting.
pub(super) fn enter(engine: &Arc<Engine>, key: &LockKey, claim: Claim, now: Instant) -> Step {
    let entered = engine
        .lanes
        .with(key, |lane| admit(engine, lane, key, claim, now));
    match entered {
        Entered::Occupied => Step::Slow(Slow::Occupied),
        entered => entered_as(engine, key, claim, entered, now),
    }
}

/// Enters the lane, or joins its queue.
fn join(engine: &Arc<Engine>, key: &LockKey, claim: Claim, deadline: Option<Instant>) -> Step {
    let seated = seat(engine, claim, deadline);
    let now = Instant::now();
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
            let queued = Queued::new(engine, key, claim.ticket, answer);
            engine.follow(key, next);
            Step::Slow(Slow::Queued(queued))
        }
        Err(entered) => entered_as(engine, key, claim, entered, now),
    }
}

fn admit(engine: &Engine, lane: &mut Lane, key: &LockKey, claim: Claim, now: Instant) -> Entered {
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
    now: Instant,
) -> Step {
    match entered {
        Entered::Granted(granted) => Step::Done(Ok(engine.hold(granted))),
        Entered::TookBack(granted, report) => {
            tell(report, Ok(()));
            Step::Done(Ok(engine.hold(granted)))
        }
        Entered::Refused(error) => Step::Done(Err(error)),
        Entered::Occupied => Step::Slow(Slow::Occupied),
        Entered::Drive => {
            let mut contention = Contention::new(Arc::clone(engine), key.clone());
            let tried = contention.try_now(claim.terms, now);
            let driver = Driver::new(contention);
            match tried {
                None => Step::Slow(Slow::Drive(driver)),
                Some(Tried::NotYet(seen)) if !claim.once => Step::Slow(Slow::Tried(driver, seen)),
                Some(tried) => Step::Done(settle(engine, key, claim, driver, tried, now)),
            }
        }
    }
}

/// The end of a driver that does not go on to wait.
fn settle(
    engine: &Arc<Engine>,
    key: &LockKey,
    claim: Claim,
    driver: Driver,
    tried: Tried,
    now: Instant,
) -> Result<Hold, Error> {
    match tried {
        Tried::Granted(lease) => {
            driver.disarm();
            let (granted, refused) = engine
                .lanes
                .with(key, |lane| lane.granted_to_driver(key, claim, lease, now));
            refuse(refused);
            Ok(engine.hold(granted))
        }
        Tried::NotYet(seen) => {
            let error = seen.error();
            driver.leave(seen);
            Err(error)
        }
        // For those behind it, a task finds out the same.
        Tried::Never(error) => Err(error),
    }
}

/// A place among all waiters of the manager.
fn seat(
    engine: &Engine,
    claim: Claim,
    deadline: Option<Instant>,
) -> Result<(Waiter, Answer), Error> {
    let seat = Arc::clone(&engine.seats)
        .try_acquire_owned()
        .map_err(|_| Error::new(ErrorKind::Overloaded))?;
    let (reply, answer) = oneshot::channel();
    let waiter = Waiter {
        claim,
        deadline,
        reply,
        _seat: seat,
    };
    Ok((waiter, answer))
}

impl Slow {
    pub(super) async fn finish(
        self,
        engine: &Arc<Engine>,
        key: &LockKey,
        claim: Claim,
        deadline: Option<Instant>,
    ) -> Result<Hold, Error> {
        let mut slow = self;
        loop {
            slow = match slow {
                Self::Occupied => match join(engine, key, claim, deadline) {
                    Step::Done(outcome) => return outcome,
                    Step::Slow(slow) => slow,
                },
                Self::Drive(mut driver) => {
                    // Dropped here, or out of time: the driver hands its try to a task.
                    let Some(tried) = by(deadline, driver.outcome()).await else {
                        return Err(Error::new(ErrorKind::Unavailable).with_source(NoAnswer));
                    };
                    match tried {
                        Tried::NotYet(seen) if !claim.once => Self::Tried(driver, seen),
                        tried => return settle(engine, key, claim, driver, tried, Instant::now()),
                    }
                }
                Self::Tried(driver, seen) => {
                    let (waiter, answer) = match seat(engine, claim, deadline) {
                        Ok(seated) => seated,
                        Err(error) => {
                            driver.leave(seen);
                            return Err(error);
                        }
                    };
                    driver.queue(waiter, seen);
                    Self::Queued(Queued::new(engine, key, claim.ticket, answer))
                }
                Self::Queued(queued) => {
                    let hold = queued.wait(deadline).await?;
                    if hold.is_held() {
                        return Ok(hold);
                    }
                    // The process stood still between the grant and this moment.
                    drop(hold);
                    Self::Occupied
                }
            };
        }
    }
}

/// The first command was still on the wire when the wait was over.
#[derive(Debug, thiserror::Error)]
#[error("the lock backend did not answer within the wait")]
struct NoAnswer;

type Answer = oneshot::Receiver<Result<Hold, Error>>;

/// A place in the queue of a lane; dropped, it is free at once.
pub(super) struct Queued {
    engine: Arc<Engine>,
    key: LockKey,
    ticket: Ticket,
    // Dropped after `Drop` has left the queue: a hold that was sent by then is released.
    answer: Answer,
    answered: bool,
}

impl Queued {
    fn new(engine: &Arc<Engine>, key: &LockKey, ticket: Ticket, answer: Answer) -> Self {
        Self {
            engine: Arc::clone(engine),
            key: key.clone(),
            ticket,
            answer,
            answered: false,
        }
    }

    async fn wait(mut self, deadline: Option<Instant>) -> Result<Hold, Error> {
        let answer = match by(deadline, &mut self.answer).await {
            Some(answer) => answer,
            None => {
                let left = self.engine.lanes.with(&self.key, |lane| {
                    let waiter = lane.leave(self.ticket)?;
                    Some((waiter, lane.why_not(Instant::now())))
                });
                match left {
                    Some((_waiter, error)) => return Err(error),
                    // Served at this very moment: the answer is being sent.
                    None => (&mut self.answer).await,
                }
            }
        };
        self.answered = true;
        answer.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable)))
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let waiter = self
            .engine
            .lanes
            .with(&self.key, |lane| lane.leave(self.ticket));
        drop(waiter);
    }
}
