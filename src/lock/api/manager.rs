//! The public handle of the engine.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "axum")]
use uuid::Uuid;

use super::snapshot::LockInfo;
use crate::backend::{BackendError, BackendErrorKind, ForceReleased, Holder};
use crate::key::InvalidKey;
use crate::lock::acquire::Acquire;
use crate::lock::clock::timeout::by;
use crate::lock::engine::{Engine, Shutdown};
use crate::lock::table::counts::{Counts, Snapshot};
use crate::observe::{Forced, Name, Tally};
use crate::{Error, ErrorKind, LockKey, LockKeys, Owner};

/// A cheaply cloneable handle that acquires locks by key.
///
/// Clones share all state. Guards stay valid after the last handle is dropped.
///
/// Use one manager per backend in a process, and clone it. Two managers over one backend contend with each
/// other like two processes: their waiters share no queue, and an owner belongs to one manager. A request that holds a
/// lock through one manager, and acquires it through the other, waits for itself until its wait ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_lock::{LockManager, Memory};
///
/// let locks = LockManager::builder(Memory::new())
///     .wait(Duration::from_secs(2))
///     .watchdog_timeout(Duration::from_secs(10))
///     .build()?;
///
/// let guard = locks.acquire("order:42").await?;
/// assert!(locks.acquire("order:42").no_wait().await.unwrap_err().is_busy());
///
/// let again = locks.acquire("order:42").owner(guard.owner()).await?;
/// assert_eq!(again.hold_count(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockManager {
    engine: Arc<Engine>,
}

impl LockManager {
    /// Creates a request for a lock on one or several keys: a [`LockKey`], text, or an array or vector of
    /// either.
    ///
    /// To acquire a lock that the same request or task already holds, set its owner with
    /// [`Acquire::owner`]. Otherwise the acquire waits for its own lock. In a handler,
    /// [`LockScope::acquire`](crate::LockScope::acquire) sets it, and keeps the lock until the response is complete.
    pub fn acquire(&self, keys: impl Into<LockKeys>) -> Acquire {
        Acquire::new(Arc::clone(&self.engine), keys.into())
    }

    pub(crate) fn of(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Creates a unique owner, for [`Acquire::owner`].
    #[must_use]
    pub fn new_owner(&self) -> Owner {
        self.engine.owner(self.engine.next_number())
    }

    /// Returns the id that this manager shares with its clones only.
    #[cfg(feature = "axum")]
    pub(crate) fn id(&self) -> Uuid {
        self.engine.id
    }

    /// Returns `true` if this manager created the owner, so that the owner can re-enter its locks here.
    pub(crate) fn has_created(&self, owner: Owner) -> bool {
        owner.manager() == self.engine.id
    }

    /// Returns `true` if any process holds the key.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`](ErrorKind::InvalidKey) or the error of the backend.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing changes.
    pub async fn is_locked(&self, key: impl Into<LockKey>) -> Result<bool, Error> {
        Ok(self.holder(&valid(key)?).await?.is_some())
    }

    /// Returns the key's holder, or `None` if it is free. A key that is held shared, or by permits, can have several:
    /// the result has their number, and describes one of them.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`](ErrorKind::InvalidKey) or the error of the backend.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing changes.
    pub async fn inspect(&self, key: impl Into<LockKey>) -> Result<Option<LockInfo>, Error> {
        let key = valid(key)?;
        let holder = self.holder(&key).await?;
        Ok(holder.map(|holder| LockInfo::of(&self.engine, &key, holder)))
    }

    async fn holder(&self, key: &LockKey) -> Result<Option<Holder>, Error> {
        self.engine.require_home()?;
        let backend = Arc::clone(&self.engine.backend);
        let command = backend.inspect(key.clone());
        self.engine.run(command).await.map_err(Error::of_backend)
    }

    /// Releases the lock of any holder, of all of them if they share the key or have permits, and notifies the
    /// waiters. Returns `true` if the key was held.
    ///
    /// A guard of this manager is lost at once. If it was being granted concurrently, it is lost at its
    /// first renewal, which follows immediately. A guard of another process is lost at its next renewal. A
    /// guard with a fixed [`lease`](crate::manager::Acquire::lease) has no renewals and is not notified. Intended
    /// for operators' tools, not for application code.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`](ErrorKind::InvalidKey) or the backend's error. After a backend error, the key
    /// may have been released.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the key may be released or still held. A guard of this manager then detects the loss at
    /// its next renewal.
    pub async fn force_release(&self, key: impl Into<LockKey>) -> Result<bool, Error> {
        let key = valid(key)?;
        let engine = &self.engine;
        engine.require_home()?;
        let seen = engine.leases_of(&key);
        let backend = Arc::clone(&engine.backend);
        let outcome = engine.run(backend.force_release(key.clone(), None)).await;
        count_forced(engine, &outcome);
        let outcome = outcome.map_err(Error::of_backend)?;
        let now = engine.now();
        for lane in engine.leases_of(&key).into_keys() {
            let seen = seen.get(&lane).copied().flatten();
            engine.event(&lane, now, |lane, effects| {
                lane.released_by_force(seen, effects);
            });
        }
        Ok(outcome == ForceReleased::Released)
    }

    /// Returns what this manager has counted.
    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.engine.tally
    }

    /// Counts and reports a request that failed before its acquire.
    pub(crate) fn not_acquired(&self, name: Option<&str>, error: &Error) {
        let tally = &self.engine.tally;
        let name = name.map_or(Name::NONE, |name| tally.number(name));
        self.engine.acquired(name, Err(error), Duration::ZERO, None);
    }

    /// Returns the numbers of locks and waiters of this manager.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut counts = Counts::of(&self.engine.lanes, self.engine.now());
        counts.snapshot.unreleased += self.engine.unconfirmed();
        counts.snapshot
    }

    /// Rejects new acquires with [`ShuttingDown`](ErrorKind::ShuttingDown), serves the waiters, and completes when all
    /// locks are released, or after `grace`. Returns the remaining locks.
    ///
    /// - Waiters with a bounded wait are served until it ends. Those that are left shortly before the end of `grace` are
    ///   rejected then, so that their responses go out in time: by a tenth of it, and at most by one response timeout of the
    ///   backend (Redis: 500 ms by default). With a grace of zero, all are rejected at once.
    /// - Waiters without a deadline ([`wait_forever`](Acquire::wait_forever)) are rejected at once.
    /// - Locks that are held stay renewed, and their owners may re-enter them.
    /// - If the backend does not reply, the call completes one response timeout after the last holder and waiter has
    ///   ended. The keys stay held for the rest of their leases, and the result counts them as
    ///   [`unreleased`](Snapshot::unreleased).
    ///
    /// A further call waits for the remaining locks.
    ///
    /// A process that ends without this call leaves its keys held for the rest of their leases. Call it on
    /// SIGTERM, by which service managers and containers stop a program, and on Ctrl-C:
    ///
    /// ```
    /// # #[cfg(not(unix))]
    /// # fn main() {}
    /// # #[cfg(unix)]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use tower_lock::LockManager;
    /// # let locks = LockManager::in_memory();
    /// # let app: axum::Router = axum::Router::new();
    /// # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// use tokio::signal::unix::{SignalKind, signal};
    /// use tokio::sync::oneshot;
    /// use tokio::time::timeout;
    ///
    /// /// The longest time that requests may take to finish. Shorter than that of the service manager.
    /// const GRACE: Duration = Duration::from_secs(10);
    ///
    /// let mut sigterm = signal(SignalKind::terminate())?;
    /// let (stop, stopped) = oneshot::channel::<()>();
    /// let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    /// let server = tokio::spawn(async move { server.await });
    /// # let this = std::process::id().to_string();
    /// # std::process::Command::new("kill").args(["-TERM", &this]).status()?;
    ///
    /// tokio::select! {
    ///     _ = sigterm.recv() => {}
    ///     _ = tokio::signal::ctrl_c() => {}
    /// }
    /// drop(stop); // The server accepts no connections, and lets its requests finish.
    /// // Serves the waiters, and releases the locks of the requests that finish. Both end within GRACE.
    /// let (left, served) = tokio::join!(locks.shutdown(GRACE), timeout(GRACE, server));
    /// if !left.is_idle() || served.is_err() {
    ///     eprintln!("still at work: {left:?}"); // These locks expire with their leases.
    /// }
    /// # assert!(left.is_idle());
    /// # served???;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If dropped after the first poll, the manager stays shut down.
    pub async fn shutdown(&self, grace: Duration) -> Snapshot {
        let engine = &self.engine;
        engine.close(Shutdown::Draining);
        // A home that has ended moves here, or leaves what it has to expire.
        let _has_ended = engine.require_home();
        let (clock, begun) = (engine.home.clock, engine.now());
        let served = grace - engine.capabilities.response_timeout.min(grace / 10);
        by(clock, begun + served, begun, engine.lanes.unused()).await;
        engine.close(Shutdown::Rejecting);
        let until = begun + grace;
        by(clock, until, engine.now(), engine.lanes.unused()).await;
        let mut finished = pin!(async {
            engine.lanes.emptied().await;
            engine.home.unconfirmed.finished().await;
        });
        (engine.replies_by).no_earlier_than(engine.stuck_at(engine.now()));
        let left = loop {
            let due = engine.replies_by.load().min(until);
            match by(clock, due, engine.now(), finished.as_mut()).await {
                Some(()) => break Snapshot::default(),
                None if engine.replies_by.load().min(until) > due => {}
                None => break self.snapshot(),
            }
        };
        #[cfg(feature = "metrics")]
        self.flush_metrics();
        left
    }

    /// Reports all counts and gauges to the recorder of the `metrics` crate now.
    ///
    /// Without this call, a thread reports the counts every second and the gauges every 5 s.
    /// [`metrics`](crate::metrics) describes it. Intended for tests, and for programs that render their metrics before
    /// they end.
    ///
    /// ```
    /// let locks = tower_lock::LockManager::in_memory();
    /// locks.flush_metrics();
    /// ```
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn flush_metrics(&self) {
        self.engine.report();
    }
}

/// Counts a forced release.
pub(super) fn count_forced<E>(engine: &Engine, outcome: &Result<ForceReleased, E>) {
    engine.tally.force_released(match outcome {
        Ok(ForceReleased::Released) => Forced::Released,
        Ok(_) => Forced::NotHeld,
        Err(_) => Forced::Failed,
    });
}

pub(crate) fn valid(key: impl Into<LockKey>) -> Result<LockKey, Error> {
    let key = key.into();
    key.validate().map_err(Error::of_key)?;
    Ok(key)
}

impl Error {
    pub(crate) fn of_key(invalid: InvalidKey) -> Self {
        Self::new(ErrorKind::InvalidKey).with_source(invalid)
    }

    pub(crate) fn of_backend(error: BackendError) -> Self {
        let kind = match error.kind() {
            BackendErrorKind::Unavailable => ErrorKind::Unavailable,
            BackendErrorKind::Misconfigured => ErrorKind::Refused,
            BackendErrorKind::Conflict => ErrorKind::KeyConflict,
            BackendErrorKind::Unsupported => ErrorKind::Unsupported,
        };
        Self::new(kind).with_source(error)
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("options", &self.engine.options)
            .field("snapshot", &self.snapshot())
            .finish_non_exhaustive()
    }
}
