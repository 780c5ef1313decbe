//! The request for a lock, and its options.

mod awaited;
#[cfg(feature = "test-util")]
pub(super) mod by_hand;
pub(super) mod entry;
mod every;
mod future;
pub(super) mod guard;
mod several;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use self::awaited::Awaited;
use super::engine::Engine;
use crate::lock::lease::{Held, Keep};
use crate::observe::Name;
use crate::{Error, ErrorKind, LockKeys, Owner};

pub use future::AcquireFuture;

/// A request for a lock on one or several keys, which resolves to a [`LockGuard`](crate::LockGuard).
///
/// Created by [`LockManager::acquire`](crate::LockManager::acquire). Several keys are locked in
/// their sorted order, all or none, within one wait.
///
/// # Errors
///
/// Returns an [`Error`] of kind [`Busy`](ErrorKind::Busy),
/// [`TooManyWaiters`](ErrorKind::TooManyWaiters), [`Overloaded`](ErrorKind::Overloaded),
/// [`Unavailable`](ErrorKind::Unavailable), [`Refused`](ErrorKind::Refused),
/// [`ShuttingDown`](ErrorKind::ShuttingDown), [`InvalidKey`](ErrorKind::InvalidKey),
/// [`InvalidOption`](ErrorKind::InvalidOption), [`KeyConflict`](ErrorKind::KeyConflict) or
/// [`ReentrancyLimit`](ErrorKind::ReentrancyLimit). With [`shared`](Self::shared) and [`permits`](Self::permits), also
/// [`PermitsExhausted`](ErrorKind::PermitsExhausted), [`Upgrade`](ErrorKind::Upgrade) or
/// [`Unsupported`](ErrorKind::Unsupported). With several keys and a fixed [`lease`](Self::lease), returns [`Lost`](ErrorKind::Lost) if the lease of one key expires during
/// the wait for another.
///
/// Works outside of a runtime too.
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
/// # Without an await
///
/// `let _guard = locks.acquire(key);` acquires nothing, and compiles. The first `Acquire` of a process that is dropped
/// without an await logs a warning. One that is cloned is exempt. [`guide::testing`](crate::guide::testing#lints) has the
/// lints for similar mistakes.
///
/// # Cancel safety
///
/// If dropped, the acquire leaves the queue at once, and a lease that a command in flight may still
/// acquire is released in the background. A future that is not polled delays no other acquire until it is
/// granted. A grant that it does not pick up by its deadline is released. With
/// [`wait_forever`](Self::wait_forever) it has no deadline: poll it, or drop it.
#[derive(Clone)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    engine: Arc<Engine>,
    keys: LockKeys,
    /// `None` without a deadline. With zero, the acquire makes one attempt.
    wait: Option<Duration>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    keep: Option<Keep>,
    owner: Option<Owner>,
    name: Name,
    /// The limit of permits, if the acquire asks for those in place of locks. The first poll checks it, and rejects what
    /// a `u16` cannot hold as its largest number.
    permits: Option<u16>,
    awaited: Awaited,
}

impl Acquire {
    pub(crate) fn new(engine: Arc<Engine>, keys: LockKeys) -> Self {
        Self {
            wait: Some(engine.options.wait),
            keep: Keep::new(engine.options.keep_released),
            engine,
            keys,
            lease: None,
            max_hold: None,
            owner: None,
            name: Name::NONE,
            permits: None,
            awaited: Awaited::default(),
        }
    }

    /// Its caller may drop it without an await: a request can end while its body is read.
    pub(crate) fn may_be_dropped(mut self) -> Self {
        self.awaited.set();
        self
    }

    /// Sets the longest wait. Defaults to the manager's wait, 5 s.
    ///
    /// The wait begins at the first poll and covers the queue, connecting, commands and retries. At most
    /// 366 days; zero is [`no_wait`](Self::no_wait). A wait shorter than a round trip to the backend ends
    /// as [`Unavailable`](ErrorKind::Unavailable), because the state of the lock is unknown by then.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Makes one attempt, or none if an owner in this process that excludes it holds the lock or is ahead. An acquire of a
    /// permit always makes one.
    ///
    /// Ends within one response timeout of the backend (Redis: 500 ms by default), also for several keys: their
    /// attempts share that time.
    pub fn no_wait(mut self) -> Self {
        self.wait = Some(Duration::ZERO);
        self
    }

    /// Waits without a deadline.
    pub fn wait_forever(mut self) -> Self {
        self.wait = None;
        self
    }

    /// Sets a lease of this length that is not renewed, and expires when it has passed. Defaults to a
    /// lease that the watchdog renews while the lock is held.
    ///
    /// Between 10 ms and 366 days. Corresponds to Redisson's `leaseTime`.
    ///
    /// A lock with a fixed lease is never handed off inside the process, so each grant costs a round
    /// trip. A nested acquire never shortens the lease of the outer one. While a nested acquire without a fixed lease
    /// holds the lock, the watchdog renews it; after that, the fixed end counts again.
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

    /// Sets for how long the lease is kept after the lock is dropped. Defaults to the time of the manager.
    pub(crate) fn keep_released(mut self, time: Duration) -> Self {
        self.keep = Keep::new(time);
        self
    }

    /// Asks for a shared lock on each key: other owners can share it, and none can hold it exclusively. Defaults to an
    /// exclusive lock.
    ///
    /// Owners of this process that join a shared lock cost no round trip. While an exclusive acquire waits, no further
    /// owner joins, so readers delay a writer only until they release.
    ///
    /// An owner that holds the lock exclusively gets one more exclusive hold. An owner that holds it shared and asks
    /// for an exclusive lock is rejected with [`Upgrade`](ErrorKind::Upgrade). A backend that has no shared locks
    /// rejects the acquire with [`Unsupported`](ErrorKind::Unsupported).
    pub fn shared(mut self) -> Self {
        self.keys.share();
        self
    }

    /// Asks for a permit of each key, of which at most `limit` owners hold one at a time. Replaces [`shared`](Self::shared).
    ///
    /// The limit is from 1 to 10,000: otherwise the acquire returns [`InvalidOption`](ErrorKind::InvalidOption).
    ///
    /// An acquire is granted while fewer than its own limit hold a permit. The limit is no state of the key, so
    /// processes of two versions may have two limits: the smaller limit waits longer. An exclusive acquire waits for
    /// all permits, and so does a shared one of another owner. Permits wait for both. Permits are granted in the order
    /// of the queue, also in one process.
    ///
    /// An owner that has a permit gets one more hold of it, and an owner that holds the lock exclusively gets one more
    /// exclusive hold. An owner that has a permit and asks for an exclusive lock is rejected with
    /// [`Upgrade`](ErrorKind::Upgrade). An owner that has a permit and asks for a shared lock, or the reverse, is
    /// rejected with [`KeyConflict`](ErrorKind::KeyConflict). After its wait, the acquire fails with
    /// [`PermitsExhausted`](ErrorKind::PermitsExhausted). A backend that has no permits rejects it with
    /// [`Unsupported`](ErrorKind::Unsupported).
    ///
    /// The tokens of permits do not fence their holders from each other.
    pub fn permits(mut self, limit: u32) -> Self {
        self.permits = Some(u16::try_from(limit).unwrap_or(u16::MAX));
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
    /// [`LockLayer::name`](crate::LockLayer::name). Defaults to none. It is no part of the key.
    ///
    /// Metrics have the name as the label `layer`. Each name creates about 120 time series, so the names must not
    /// depend on the request. A manager distinguishes 32 names, and reports further ones as `other`.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.name = self.engine.tally.number(name.as_ref());
        self
    }

    /// Acquires the lock, runs the work and releases the lock. Drops the work if the lock is lost.
    ///
    /// The release is finished in the background. With [`no_wait`](Self::no_wait), a job is skipped only while a run of
    /// another instance overlaps: [`run_every`](Self::run_every) runs it once per interval.
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
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("keys", &self.keys)
            .field("wait", &self.wait)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("owner", &self.owner)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
