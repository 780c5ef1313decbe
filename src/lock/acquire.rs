//! The request for a lock: its options, its deadline and the order of its keys.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::claim::{Claim, Deadline, Terms};
use super::clock::{Moment, Span};
use super::engine::Engine;
use super::entry::{Step, enter};
use super::guard::LockGuard;
use super::held::Held;
use super::options::{valid_lease, valid_wait};
use super::pending::PendingAcquire;
use crate::backend::BoxFuture;
use crate::observe::{Name, Outcome, RequestSpan, WaitSpan};
use crate::{ConfigError, Error, ErrorKind, LockKey, LockKeys, Owner};

/// A request for a lock on one or several keys, which resolves to a [`LockGuard`].
///
/// Created by [`LockManager::acquire`](crate::LockManager::acquire). Several keys are locked in
/// their sorted order, all or none, within one wait.
///
/// # Errors
///
/// Returns an [`Error`] of kind [`Busy`](ErrorKind::Busy),
/// [`TooManyWaiters`](ErrorKind::TooManyWaiters), [`Overloaded`](ErrorKind::Overloaded),
/// [`Unavailable`](ErrorKind::Unavailable), [`Misconfigured`](ErrorKind::Misconfigured),
/// [`ShuttingDown`](ErrorKind::ShuttingDown), [`InvalidKey`](ErrorKind::InvalidKey),
/// [`InvalidOption`](ErrorKind::InvalidOption), [`KeyConflict`](ErrorKind::KeyConflict) or
/// [`ReentrancyLimit`](ErrorKind::ReentrancyLimit). With several keys and a fixed
/// [`lease`](Self::lease), returns [`Lost`](ErrorKind::Lost) if the lease of one key expires during
/// the wait for another.
///
/// Outside a Tokio runtime, and in one without timers, returns
/// [`Misconfigured`](ErrorKind::Misconfigured) at once, unless
/// [`LockManagerBuilder::runtime`](crate::LockManagerBuilder::runtime) sets a runtime for the
/// background work. Redis needs a runtime with I/O.
///
/// # In a loop of `select!`
///
/// An `Acquire` is a request; awaiting it, or [`into_future`](IntoFuture::into_future), makes the future. A
/// `select!` in a loop must poll one future in all turns. A fresh request in each turn would start its
/// wait again:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::Error> {
/// # let locks = tower_lock::LockManager::in_memory();
/// let mut ticks = tokio::time::interval(std::time::Duration::from_millis(1));
/// let mut acquire = std::pin::pin!(locks.acquire("order:42").into_future());
/// let guard = loop {
///     tokio::select! {
///         acquired = &mut acquire => break acquired?,
///         _ = ticks.tick() => {}
///     }
/// };
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// If dropped, the acquire leaves the queue at once, and a lease that a command in flight may still
/// acquire is released in the background. A future that is not polled delays no other acquire. A
/// grant that it does not pick up by its deadline is released.
#[derive(Clone)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    engine: Arc<Engine>,
    keys: LockKeys,
    wait: Wait,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    name: Name,
}

/// Lets the backend's own timeout, which has a more precise error, end an attempt first.
const SLACK: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy)]
enum Wait {
    Never,
    For(Duration),
    Forever,
}

impl Wait {
    fn of(wait: Duration) -> Self {
        match wait.is_zero() {
            true => Self::Never,
            false => Self::For(wait),
        }
    }
}

impl Acquire {
    pub(super) fn new(engine: Arc<Engine>, keys: LockKeys) -> Self {
        Self {
            wait: Wait::of(engine.options.wait),
            engine,
            keys,
            lease: None,
            max_hold: None,
            owner: None,
            name: Name::NONE,
        }
    }

    /// Sets the longest wait. Defaults to the manager's wait, 5 s.
    ///
    /// The wait begins at the first poll and covers the queue, connecting, commands and retries. At most
    /// 366 days; zero is [`no_wait`](Self::no_wait). A wait shorter than a round trip to the backend ends
    /// as [`Unavailable`](ErrorKind::Unavailable), because the state of the lock is unknown by then.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Wait::of(wait);
        self
    }

    /// Makes one attempt, or none if another owner in this process holds the lock or waits for it.
    ///
    /// Ends within one response timeout of the backend (Redis: 500 ms by default).
    pub fn no_wait(mut self) -> Self {
        self.wait = Wait::Never;
        self
    }

    /// Waits without a deadline.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// Sets a lease of this length that is not renewed, and expires when it has passed. Defaults to a
    /// lease that the watchdog renews while the lock is held.
    ///
    /// Between 10 ms and 366 days. Corresponds to Redisson's `leaseTime`.
    ///
    /// A lock with a fixed lease is never handed off inside the process, so each grant costs a round
    /// trip. A nested acquire never shortens the lease of the outer one.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the longest hold, after which the lock is lost despite renewals. Defaults to none.
    ///
    /// Between 10 ms and 366 days. The limit of a nested acquire does not shorten the outer hold. It takes
    /// effect once the outer guards have been released, and then counts from its own grant.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets the owner. If it already holds the lock, the acquire adds a hold without a round trip.
    /// Defaults to a new owner, which also waits for the locks of its own request.
    ///
    /// Only the manager that created an owner, and its clones, recognize it: another manager on the same
    /// backend treats it as another owner. Tasks that share an owner do not exclude each other. If
    /// several of them wait for one key, they are granted it together.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Sets the name under which metrics and events report this acquire, like
    /// [`LockLayer::name`](crate::LockLayer::name). Defaults to none.
    ///
    /// Metrics have the name as the label `layer`. Each name creates about 120 time series, so the names must not
    /// depend on the request. A manager distinguishes 32 names, and reports further ones as `other`.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.name = self.engine.tally.number(name.as_ref());
        self
    }

    /// Acquires the lock, runs the work and releases the lock. Drops the work if the lock is lost.
    ///
    /// The release is finished in the background.
    ///
    /// # Errors
    ///
    /// Returns the errors of the acquire, or [`Lost`](ErrorKind::Lost) if the lock is lost before the work
    /// completes.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the work is dropped first, and then the lock is released.
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
        // Declared after the guard, so dropped before it on every exit.
        tokio::select! {
            biased;
            () = guard.lost() => Err(Error::new(ErrorKind::Lost)),
            // The loss may have come during the last poll of the work.
            output = work => match guard.is_held() {
                true => Ok(output),
                false => Err(Error::new(ErrorKind::Lost)),
            },
        }
    }

    /// Begins the span of a wait for these keys.
    fn wait_span(&self, keys: &[LockKey]) -> WaitSpan {
        let engine = &self.engine;
        let written = || {
            #[cfg(feature = "tracing")]
            return engine.options.trace_keys.as_ref().map(|it| it.write(keys));
            #[cfg(not(feature = "tracing"))]
            {
                let _unused_without_features = keys;
                None
            }
        };
        WaitSpan::begin(|| engine.tally.text(self.name), written)
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
            ttl: self.engine.lease_span(self.lease),
            renewed: self.lease.is_none(),
            max_hold: self.max_hold.map_or(Span::FOREVER, Span::new),
        })
    }

    /// Proceeds as far as possible without waiting. The wait counts from `now`.
    fn start(&mut self, now: Moment) -> Started {
        let terms = match self.keys.validate() {
            Err(invalid) => return Started::refused(ErrorKind::InvalidKey, invalid),
            Ok(()) => match self.terms() {
                Err(invalid) => return Started::refused(ErrorKind::InvalidOption, invalid),
                Ok(terms) => terms,
            },
        };
        let home = match self.engine.current_home() {
            Ok(home) => home,
            Err(error) => return Started::Done(Err(error)),
        };
        let ticket = self.engine.next_number();
        let claim = Claim {
            ticket,
            hold: ticket,
            owner: self.owner.unwrap_or_else(|| self.engine.new_owner()),
            is_owner_fresh: self.owner.is_none(),
            terms,
            deadline: match self.wait {
                Wait::Never => Deadline::OneAttempt(now + self.engine.response_timeout + SLACK),
                Wait::For(wait) => Deadline::At(now + wait),
                Wait::Forever => Deadline::Endless,
            },
            grouped: self.keys.as_slice().len() > 1,
            home,
            since: now,
            name: self.name,
            span: RequestSpan::current(),
        };
        if let [key] = self.keys.as_slice() {
            match enter(&self.engine, key, &claim, now) {
                Step::Done(outcome) => Started::Done(outcome.map(LockGuard::one)),
                Step::Slow(stage) => {
                    let key = key.clone();
                    let engine = Arc::clone(&self.engine);
                    let span = self.wait_span(std::slice::from_ref(&key));
                    let pending = PendingAcquire::new(engine, key, claim, stage, now);
                    Started::Slow(Slow::One(pending), span)
                }
            }
        } else {
            let span = self.wait_span(self.keys.as_slice());
            let all = acquire_all(Arc::clone(&self.engine), self.keys.take(), claim, now);
            Started::Slow(
                Slow::Many {
                    engine: Arc::clone(&self.engine),
                    name: self.name,
                    all: Box::pin(all),
                },
                span,
            )
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

/// The future of an [`Acquire`], which allocates only if it has to wait.
///
/// # Panics
///
/// Panics if polled again after it completed.
#[must_use = "futures do nothing unless polled"]
pub struct AcquireFuture {
    state: State,
}

// The unpolled request is the common case, and boxing it would cost what the fast path saves.
#[allow(clippy::large_enum_variant)]
enum State {
    Unpolled(Acquire),
    Slow {
        since: Moment,
        rest: Slow,
        span: WaitSpan,
    },
    Done,
}

enum Slow {
    One(PendingAcquire),
    Many {
        engine: Arc<Engine>,
        name: Name,
        all: BoxFuture<Result<LockGuard, Error>>,
    },
}

enum Started {
    Done(Result<LockGuard, Error>),
    Slow(Slow, WaitSpan),
}

impl Started {
    fn refused(kind: ErrorKind, why: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Done(Err(Error::new(kind).with_source(why)))
    }
}

impl Future for AcquireFuture {
    type Output = Result<LockGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Unpolled(acquire) = &mut self.state {
            let since = Moment::now();
            match acquire.start(since) {
                Started::Done(outcome) => {
                    let ended = outcome.as_ref().map(|_| ());
                    acquire.engine.acquired(acquire.name, ended, Duration::ZERO);
                    self.state = State::Done;
                    return Poll::Ready(outcome);
                }
                Started::Slow(rest, span) => self.state = State::Slow { since, rest, span },
            }
        }
        match &mut self.state {
            State::Slow { since, rest, span } => {
                let (outcome, now) = ready!(span.within(|| match rest {
                    Slow::One(pending) => {
                        let ended = Pin::new(pending).poll(cx);
                        ended.map(|(outcome, now)| (outcome.map(LockGuard::one), now))
                    }
                    Slow::Many { all, .. } => {
                        let ended = all.as_mut().poll(cx);
                        ended.map(|outcome| (outcome, Moment::now()))
                    }
                }));
                let waited = now.since(*since);
                let outcome = outcome.map(|mut guard| {
                    guard.set_waited(waited);
                    guard
                });
                let (engine, name) = rest.reporter();
                let ended = outcome.as_ref().map(|_| ());
                span.end(
                    Outcome::of(ended),
                    outcome.as_ref().map(|it| it.via()).ok(),
                    waited,
                );
                engine.acquired(name, ended, waited);
                self.state = State::Done;
                Poll::Ready(outcome)
            }
            State::Unpolled(_) | State::Done => panic!("`AcquireFuture` polled after completion"),
        }
    }
}

impl Drop for AcquireFuture {
    fn drop(&mut self) {
        if let State::Slow { since, rest, span } = &self.state {
            let (engine, name) = rest.reporter();
            let waited = Moment::now().since(*since);
            span.end(Outcome::Cancelled, None, waited);
            engine.cancelled(name, waited);
        }
    }
}

impl Slow {
    /// Returns the engine that reports the acquire, and its name.
    fn reporter(&self) -> (&Arc<Engine>, Name) {
        match self {
            Self::One(pending) => pending.reporter(),
            Self::Many { engine, name, .. } => (engine, *name),
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
    mut now: Moment,
) -> Result<LockGuard, Error> {
    // The longest hold counts from the grant of the last key.
    let mut one = claim;
    one.terms.max_hold = Span::FOREVER;
    // Dropped on error or cancellation, which releases the keys acquired so far.
    let mut holds = Vec::with_capacity(keys.as_slice().len());
    for key in keys.as_slice() {
        // A ticket orders by arrival, and the acquire arrives at each key at another time.
        one.ticket = engine.next_number();
        holds.push(match enter(&engine, key, &one, now) {
            Step::Done(outcome) => outcome?,
            Step::Slow(stage) => {
                let engine = Arc::clone(&engine);
                let pending = PendingAcquire::new(engine, key.clone(), one, stage, now);
                let (outcome, ended_at) = pending.await;
                now = ended_at;
                outcome?
            }
        });
    }
    // A fixed lease may have expired during the wait for another key.
    if !holds.iter().all(|hold| hold.is_held(now)) {
        return Err(Error::new(ErrorKind::Lost));
    }
    LockGuard::many(&engine, holds, &claim, now).ok_or_else(|| Error::new(ErrorKind::Lost))
}
