//! The public handle of the engine, and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::Acquire;
use super::clock::Moment;
use super::engine::Engine;
use super::options::Options;
use super::snapshot::{LockInfo, Snapshot};
use super::timeout::by;
#[cfg(feature = "tracing")]
use super::trace_keys::TraceKeys;
use super::watchdog;
use crate::backend::{
    Backend, BackendError, BackendErrorKind, ErasedBackend, ForceReleased, erased,
};
use crate::observe::{Forced, Name, Tally};
use crate::task::{Handle, NoTimers, Runtime, timers_work};
use crate::{ConfigError, Error, ErrorKind, LockKey, LockKeys, Owner};

/// A cheaply cloneable handle that acquires locks by key.
///
/// Clones share all state. Guards stay valid after the last handle is dropped.
///
/// Use one manager per backend in a process, and clone it. Two managers over one backend contend with each
/// other like two processes: their waiters share no queue, and an owner counts its holds per manager.
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
    /// Creates a builder of a manager on any [`Backend`], with the defaults of [`LockManagerBuilder`].
    pub fn builder(backend: impl Backend) -> LockManagerBuilder {
        let tally = Arc::default();
        LockManagerBuilder {
            backend: erased(backend, &tally),
            options: Options::default(),
            runtime: None,
            tally,
        }
    }

    /// Creates a request for a lock on one or several keys: a [`LockKey`], text, or an array or vector of
    /// either.
    ///
    /// To acquire a lock that the same request or task already holds, set its owner with
    /// [`Acquire::owner`]. Otherwise the acquire waits for its own lock.
    pub fn acquire(&self, keys: impl Into<LockKeys>) -> Acquire {
        Acquire::new(Arc::clone(&self.engine), keys.into())
    }

    #[cfg(feature = "dashboard")]
    pub(super) fn of(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns how long an acquire waits by default.
    pub(crate) fn default_wait(&self) -> Duration {
        self.engine.options.wait
    }

    /// Creates a unique owner, for [`Acquire::owner`].
    #[must_use]
    pub fn new_owner(&self) -> Owner {
        self.engine.new_owner()
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
        Ok(self.inspect(key).await?.is_some())
    }

    /// Returns the key's holder, or `None` if it is free.
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
        self.engine.require_runtime()?;
        let backend = Arc::clone(&self.engine.backend);
        let holder = self
            .engine
            .homes
            .entered(backend.inspect(key.clone()))
            .await?;
        Ok(holder.map(|holder| LockInfo::of(&self.engine, &key, holder)))
    }

    /// Releases the lock of any holder and notifies the waiters. Returns `true` if the key was held.
    ///
    /// A guard of this manager is lost at once. If it was being granted concurrently, it is lost at its
    /// first renewal, which follows immediately. A guard of another process is lost at its next renewal. A
    /// guard with a fixed [`lease`](crate::Acquire::lease) has no renewals and is not notified. Intended
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
        engine.require_runtime()?;
        let seen = engine.event(&key, |lane, _| lane.lease_number());
        let backend = Arc::clone(&engine.backend);
        let outcome = engine
            .homes
            .entered(backend.force_release(key.clone()))
            .await;
        engine.tally.force_released(match &outcome {
            Ok(ForceReleased::Released) => Forced::Released,
            Ok(_) => Forced::NotHeld,
            Err(_) => Forced::Failed,
        });
        let outcome = outcome?;
        let now = Moment::now();
        engine.event(&key, |lane, effects| {
            lane.released_by_force(seen, now, effects);
        });
        Ok(outcome == ForceReleased::Released)
    }

    /// Returns what this manager has counted.
    #[cfg(feature = "dashboard")]
    pub(crate) fn tally(&self) -> &Tally {
        &self.engine.tally
    }

    /// Returns the counts, for reports of the layer.
    pub(crate) fn shared_tally(&self) -> Arc<Tally> {
        Arc::clone(&self.engine.tally)
    }

    /// Counts and reports a request that failed before its acquire.
    pub(crate) fn not_acquired(&self, name: Option<&str>, error: &Error) {
        let tally = &self.engine.tally;
        let name = name.map_or(Name::NONE, |name| tally.number(name));
        self.engine.acquired(name, Err(error), Duration::ZERO);
    }

    /// Returns the numbers of locks and waiters of this manager.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.engine)
    }

    /// Rejects new acquires and all waiters with [`ShuttingDown`](ErrorKind::ShuttingDown), and completes
    /// when all locks are released, or after `grace`. Returns the remaining locks.
    ///
    /// Locks that are held stay renewed, and their owners may re-enter them. A further call waits for the
    /// remaining locks.
    ///
    /// A server rejects its waiters when it begins to stop, and finishes the releases when its last request has
    /// ended. A process that ends without that leaves its keys held for the rest of their leases. Call it on
    /// SIGTERM, by which service managers and containers stop a program, and on Ctrl-C:
    ///
    /// ```
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
    /// // Rejects the waiters, and releases the locks of the requests that finish. Both end within GRACE.
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
        self.engine.close();
        // The work of ended runtimes continues in this one.
        if let Ok(home) = self.engine.current_home() {
            watchdog::adopt_all(&self.engine, home);
        }
        let now = Moment::now();
        let finished = async {
            self.engine.lanes.emptied().await;
            for home in self.engine.homes.all() {
                home.unresolved.finished().await;
            }
        };
        let left = match by(now + grace, now, finished).await {
            Some(()) => Snapshot::default(),
            None => self.snapshot(),
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
        self.engine.report(true);
    }
}

pub(super) fn valid(key: impl Into<LockKey>) -> Result<LockKey, Error> {
    let key = key.into();
    match key.validate() {
        Ok(()) => Ok(key),
        Err(invalid) => Err(Error::new(ErrorKind::InvalidKey).with_source(invalid)),
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        let kind = match error.kind() {
            BackendErrorKind::Unavailable => ErrorKind::Unavailable,
            BackendErrorKind::Misconfigured => ErrorKind::Misconfigured,
            BackendErrorKind::Conflict => ErrorKind::KeyConflict,
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

/// Settings of a [`LockManager`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct LockManagerBuilder {
    backend: Arc<dyn ErasedBackend>,
    options: Options,
    runtime: Option<Handle>,
    tally: Arc<Tally>,
}

impl LockManagerBuilder {
    /// Sets how long an acquire waits by default. Defaults to 5 s.
    ///
    /// At most 366 days; zero is [`no_wait`](Acquire::no_wait).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = wait;
        self
    }

    /// Sets the length of a renewed lease. Defaults to 30 s.
    ///
    /// The watchdog renews each lease when a third of it has passed. After a crash of the holder's
    /// process, the key stays held for up to this time. Between 10 ms and 366 days.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.options.watchdog_timeout = timeout;
        self
    }

    /// Sets the maximum number of waiters per key in this process. Defaults to 1,024.
    ///
    /// Further acquires are rejected with [`TooManyWaiters`](ErrorKind::TooManyWaiters) before any command
    /// is sent. At least 1.
    pub fn max_waiters_per_key(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_key = limit;
        self
    }

    /// Sets the maximum number of waiters of this manager. Defaults to 65,536.
    ///
    /// Further acquires are rejected with [`Overloaded`](ErrorKind::Overloaded). At least 1.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.options.max_waiters = limit;
        self
    }

    /// Writes keys into the span of each acquire that waits. By default, traces contain no keys.
    ///
    /// Keys can contain personal data. [`TraceKeys::hashed`] writes hashes that only the holder of the secret can
    /// compare with a known key.
    ///
    /// ```
    /// use tower_lock::{LockManager, Memory, TraceKeys};
    ///
    /// let secret = [7; 32]; // From the configuration.
    /// let locks = LockManager::builder(Memory::new())
    ///     .trace_keys(TraceKeys::hashed(secret))
    ///     .build()?;
    /// # drop(locks);
    /// # Ok::<_, tower_lock::ConfigError>(())
    /// ```
    #[cfg(feature = "tracing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
    pub fn trace_keys(mut self, trace_keys: TraceKeys) -> Self {
        self.options.trace_keys = Some(trace_keys);
        self
    }

    /// Sets the runtime for all background work. Defaults to the runtime of each acquire.
    ///
    /// By default a lock is renewed only while the runtime that acquired it is driven. Set another runtime
    /// if handlers block their executor, if the program calls `block_on` from synchronous code, or if it
    /// acquires outside any Tokio runtime. Prefer a runtime with a thread of its own; it needs timers.
    /// When that runtime ends, all locks are lost. See [`guide::runtimes`](crate::guide::runtimes).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_lock::{LockManager, Memory};
    ///
    /// let background = tokio::runtime::Builder::new_multi_thread()
    ///     .worker_threads(1)
    ///     .thread_name("locks")
    ///     .enable_all()
    ///     .build()?;
    /// let locks = LockManager::builder(Memory::new())
    ///     .runtime(background.handle().clone())
    ///     .build()?;
    /// # drop(locks);
    /// # Ok(())
    /// # }
    /// ```
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Creates the manager.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names a setting out of bounds, or the runtime if it has no timers.
    pub fn build(self) -> Result<LockManager, ConfigError> {
        self.options.validate()?;
        if let Some(runtime) = &self.runtime {
            let _entered = runtime.enter();
            if !timers_work() {
                return Err(ConfigError::new("runtime", NoTimers.to_string()));
            }
        }
        let runtime = self.runtime.map(Runtime::Tokio);
        let engine = Engine::new(self.backend, self.options, runtime);
        let engine = Arc::new(engine.counted_by(self.tally));
        // A series that begins above zero shows no increase.
        #[cfg(feature = "metrics")]
        engine.report(true);
        Ok(LockManager { engine })
    }
}

impl fmt::Debug for LockManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManagerBuilder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
