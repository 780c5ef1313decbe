//! The request for a lock: its options, its deadline, and the order of several keys.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::contender::{Contention, Driver, Tried};
use super::engine::Engine;
use super::guard::{Held, Hold, LockGuard};
use super::lane::{Claim, Entered, Lane, Seen, Ticket, Waiter};
use super::lease::Terms;
use super::options::{valid_lease, valid_wait};
use crate::backend::BoxFuture;
use crate::{ConfigError, Error, ErrorKind, LockKey, LockKeys, Owner};

/// A request for a lock on one or several keys; await it to get the [`LockGuard`].
///
/// Made by [`LockManager::acquire`](crate::LockManager::acquire). Several keys are locked in
/// their sorted order, all or none, within one wait.
///
/// # Errors
///
/// Awaiting fails with an [`Error`] of kind [`Busy`](ErrorKind::Busy),
/// [`TooManyWaiters`](ErrorKind::TooManyWaiters), [`Overloaded`](ErrorKind::Overloaded),
/// [`Unavailable`](ErrorKind::Unavailable), [`Misconfigured`](ErrorKind::Misconfigured),
/// [`ShuttingDown`](ErrorKind::ShuttingDown), [`InvalidKey`](ErrorKind::InvalidKey),
/// [`InvalidOption`](ErrorKind::InvalidOption), [`KeyConflict`](ErrorKind::KeyConflict),
/// [`ReentrancyLimit`](ErrorKind::ReentrancyLimit), or [`Lost`](ErrorKind::Lost) if what was granted
/// was over before it could be returned: one of several keys while the others were waited for, or
/// any while this process stood still.
///
/// # Cancel safety
///
/// Dropping the future at any point leaves nothing behind: it leaves the queue at once, and what
/// a command on the wire may still acquire is given back in the background.
#[derive(Clone)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    engine: Arc<Engine>,
    keys: LockKeys,
    wait: Wait,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
}

#[derive(Debug, Clone, Copy)]
enum Wait {
    Never,
    For(Duration),
    Forever,
}

impl Acquire {
    pub(super) fn new(engine: Arc<Engine>, keys: LockKeys) -> Self {
        let wait = Wait::For(engine.options.wait);
        Self {
            engine,
            keys,
            wait,
            lease: None,
            max_hold: None,
            owner: None,
        }
    }

    /// How long to wait at most, from the first poll to the answer: queueing, connecting, commands
    /// and retries all spend from it. Default: the manager's, 5 s. At most 366 days; zero is
    /// [`no_wait`](Self::no_wait).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = if wait.is_zero() {
            Wait::Never
        } else {
            Wait::For(wait)
        };
        self
    }

    /// Makes exactly one try, and no command at all if the lock is held in this process.
    pub fn no_wait(mut self) -> Self {
        self.wait = Wait::Never;
        self
    }

    /// Waits without an end.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// Takes a lease of this length that is not renewed, Redisson's `leaseTime`: the lock is lost
    /// when it has passed. Between 10 ms and 366 days. Default: the watchdog renews the lock for as
    /// long as it is held.
    ///
    /// A lock with a fixed lease is never handed on inside the process, and each grant costs a
    /// round trip. On a nested acquire this never shortens the lease of the outer one.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Loses the lock when it has been held for so long, however often it was renewed. At least
    /// 10 ms. Default: none. Without effect on a nested acquire.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Acquires in the name of this owner: if it holds the lock already, it holds it once more,
    /// without a round trip. Default: a new owner.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Acquires, works, releases. The work's future is dropped when the lock is lost.
    ///
    /// The release is finished in the background.
    ///
    /// # Errors
    ///
    /// Those of the acquire, and [`Lost`](ErrorKind::Lost) if the lock was lost before the work was
    /// done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and then releases the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// let locks = tower_lock::LockManager::in_memory();
    /// let sum = locks.acquire("sums").run(|_held| async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F, W>(self, work: F) -> Result<W::Output, Error>
    where
        F: FnOnce(Held) -> W,
        W: Future,
    {
        let guard = self.await?;
        let work = work(guard.held());
        // On every exit `work`, declared later, is dropped before the guard.
        tokio::select! {
            biased;
            () = guard.lost() => Err(Error::new(ErrorKind::Lost)),
            output = work => Ok(output),
        }
    }

    fn terms(&self) -> Result<Terms, ConfigError> {
        if let Wait::For(wait) = self.wait {
            valid_wait("wait", wait)?;
        }
        if let Some(lease) = self.lease {
            valid_lease("lease", lease)?;
        }
        if let Some(max_hold) = self.max_hold {
            valid_lease("max_hold", max_hold)?;
        }
        Ok(Terms {
            ttl: self.lease.unwrap_or(self.engine.options.watchdog_timeout),
            renewed: self.lease.is_none(),
            max_hold: self.max_hold,
        })
    }

    fn start(self) -> Started {
        let terms = match self.keys.validate() {
            Err(invalid) => return Started::refused(ErrorKind::InvalidKey, invalid),
            Ok(()) => match self.terms() {
                Err(invalid) => return Started::refused(ErrorKind::InvalidOption, invalid),
                Ok(terms) => terms,
            },
        };
        let claim = Claim {
            ticket: self.engine.next_number(),
            owner: self.owner.unwrap_or_else(|| self.engine.new_owner()),
            terms,
            once: matches!(self.wait, Wait::Never),
        };
        let deadline = match self.wait {
            Wait::For(wait) => Some(Instant::now() + wait),
            Wait::Never | Wait::Forever => None,
        };
        if let [key] = self.keys.as_slice() {
            match enter(&self.engine, key, claim) {
                Step::Done(outcome) => Started::Done(outcome.map(LockGuard::one)),
                Step::Slow(slow) => {
                    let key = key.clone();
                    let engine = self.engine;
                    Started::Slow(Box::pin(async move {
                        let hold = slow.finish(&engine, &key, claim, deadline).await?;
                        Ok(LockGuard::one(hold.still_held()?))
                    }))
                }
            }
        } else {
            let engine = self.engine;
            let keys = self.keys;
            Started::Slow(Box::pin(acquire_all(engine, keys, claim, deadline)))
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("keys", &self.keys)
            .field("wait", &self.wait)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl IntoFuture for Acquire {
    type Output = Result<LockGuard, Error>;
    type IntoFuture = AcquireFuture;

    fn into_future(self) -> AcquireFuture {
        AcquireFuture {
            state: State::Unpolled(self),
        }
    }
}

/// The future of an [`Acquire`]. Does nothing before it is polled; then it is boxed only if it
/// has to wait.
#[must_use = "futures do nothing unless polled"]
pub struct AcquireFuture {
    state: State,
}

// The request itself is the common case: boxing it would cost what the fast path saves.
#[allow(clippy::large_enum_variant)]
enum State {
    Unpolled(Acquire),
    Slow(BoxFuture<Result<LockGuard, Error>>),
    Done,
}

enum Started {
    Done(Result<LockGuard, Error>),
    Slow(BoxFuture<Result<LockGuard, Error>>),
}

impl Started {
    fn refused(kind: ErrorKind, why: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Done(Err(Error::new(kind).with_source(why)))
    }
}

impl Future for AcquireFuture {
    type Output = Result<LockGuard, Error>;

    /// # Panics
    ///
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.state, State::Unpolled(_))
            && let State::Unpolled(acquire) = std::mem::replace(&mut self.state, State::Done)
        {
            match acquire.start() {
                Started::Done(outcome) => return Poll::Ready(outcome),
                Started::Slow(slow) => self.state = State::Slow(slow),
            }
        }
        match &mut self.state {
            State::Slow(slow) => {
                let outcome = slow.as_mut().poll(cx);
                if outcome.is_ready() {
                    self.state = State::Done;
                }
                outcome
            }
            State::Unpolled(_) | State::Done => panic!("`AcquireFuture` polled after completion"),
        }
    }
}

impl fmt::Debug for AcquireFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireFuture").finish_non_exhaustive()
    }
}

async fn acquire_all(
    engine: Arc<Engine>,
    keys: LockKeys,
    claim: Claim,
    deadline: Option<Instant>,
) -> Result<LockGuard, Error> {
    // Dropped on error or cancellation, which releases the keys taken so far.
    let mut holds = Vec::with_capacity(keys.as_slice().len());
    for key in keys.as_slice() {
        holds.push(match enter(&engine, key, claim) {
            Step::Done(outcome) => outcome?,
            Step::Slow(slow) => slow.finish(&engine, key, claim, deadline).await?,
        });
    }
    // The first may have been lost while the last was waited for.
    let holds: Result<_, _> = holds.into_iter().map(Hold::still_held).collect();
    Ok(LockGuard::many(holds?))
}

async fn by<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// One step on the way to one key, as far as it goes without waiting.
enum Step {
    Done(Result<Hold, Error>),
    Slow(Slow),
}

enum Slow {
    /// The first try is on the wire.
    Drive(Driver),
    /// It was made, without success.
    Tried(Driver, Seen),
    /// Others are before us.
    Occupied,
    Queued(Queued),
}

/// Enters the lane if that needs no place in its queue.
fn enter(engine: &Arc<Engine>, key: &LockKey, claim: Claim) -> Step {
    let entered = engine
        .lanes
        .with(key, |lane| admit(engine, lane, key, claim));
    match entered {
        Entered::Occupied => Step::Slow(Slow::Occupied),
        entered => entered_as(engine, key, claim, entered),
    }
}

/// Enters the lane, or joins its queue.
fn join(engine: &Arc<Engine>, key: &LockKey, claim: Claim, deadline: Option<Instant>) -> Step {
    let (waiter, answer) = match seat(engine, claim, deadline) {
        Ok(seated) => seated,
        Err(error) => return Step::Done(Err(error)),
    };
    let max_waiters = engine.options.max_waiters_per_key;
    let joined = engine
        .lanes
        .with(key, |lane| match admit(engine, lane, key, claim) {
            Entered::Occupied if lane.waiters() >= max_waiters => Err(Entered::Refused(
                lane.why_not(Instant::now())
                    .into_kind(ErrorKind::TooManyWaiters),
            )),
            Entered::Occupied => Ok(lane.enqueue(waiter)),
            entered => Err(entered),
        });
    match joined {
        Ok(next) => {
            let queued = Queued::new(engine, key, claim.ticket, answer);
            engine.follow(key, next);
            Step::Slow(Slow::Queued(queued))
        }
        Err(entered) => entered_as(engine, key, claim, entered),
    }
}

fn admit(engine: &Engine, lane: &mut Lane, key: &LockKey, claim: Claim) -> Entered {
    // Those who hold a lock already may take it again, to finish their work.
    let holds = lane
        .holder()
        .is_some_and(|held| held.owner() == claim.owner);
    if engine.is_closing() && !holds {
        return Entered::Refused(Error::new(ErrorKind::ShuttingDown));
    }
    lane.enter(key, claim, Instant::now())
}

fn entered_as(engine: &Arc<Engine>, key: &LockKey, claim: Claim, entered: Entered) -> Step {
    match entered {
        Entered::Granted(granted) => Step::Done(Ok(engine.hold(granted))),
        Entered::Refused(error) => Step::Done(Err(error)),
        Entered::Occupied => Step::Slow(Slow::Occupied),
        Entered::Drive => {
            let mut contention = Contention::new(Arc::clone(engine), key.clone());
            let tried = contention.try_now(claim.terms);
            let driver = Driver::new(contention);
            match tried {
                None => Step::Slow(Slow::Drive(driver)),
                Some(Tried::NotYet(seen)) if !claim.once => Step::Slow(Slow::Tried(driver, seen)),
                Some(tried) => Step::Done(settle(engine, key, claim, driver, tried)),
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
) -> Result<Hold, Error> {
    match tried {
        Tried::Granted(lease) => {
            driver.disarm();
            let now = Instant::now();
            let granted = engine
                .lanes
                .with(key, |lane| lane.granted_to_driver(key, claim, lease, now));
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
    async fn finish(
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
                        return Err(Error::new(ErrorKind::Unavailable));
                    };
                    match tried {
                        Tried::NotYet(seen) if !claim.once => Self::Tried(driver, seen),
                        tried => return settle(engine, key, claim, driver, tried),
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
                Self::Queued(queued) => return queued.wait(deadline).await,
            };
        }
    }
}

type Answer = oneshot::Receiver<Result<Hold, Error>>;

/// A place in the queue of a lane; dropped, it is free at once.
struct Queued {
    engine: Arc<Engine>,
    key: LockKey,
    ticket: Ticket,
    // Dropped after `Drop` has left the queue: a hold that was sent by then is released.
    answer: Answer,
}

impl Queued {
    fn new(engine: &Arc<Engine>, key: &LockKey, ticket: Ticket, answer: Answer) -> Self {
        Self {
            engine: Arc::clone(engine),
            key: key.clone(),
            ticket,
            answer,
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
