//! The handle that applications keep.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::Acquire;
use super::clock::Moment;
use super::engine::Engine;
use super::home::NoTimers;
use super::options::Options;
use super::snapshot::{LockInfo, Snapshot};
use super::timeout::by;
use super::{releaser, watchdog};
use crate::backend::{Backend, BackendError, BackendErrorKind, ErasedBackend, ForceReleased};
use crate::task::{Handle, Runtime, timers_work};
use crate::{ConfigError, Error, ErrorKind, LockKey, LockKeys, Owner};

/// Locks by key: the handle that an application keeps in its state and clones freely.
///
/// Clones share everything. Guards keep working after the last handle is dropped.
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
    /// A manager over any [`Backend`], with the defaults of [`LockManagerBuilder`] until they are
    /// changed.
    pub fn builder(backend: impl Backend) -> LockManagerBuilder {
        LockManagerBuilder {
            backend: Arc::new(backend),
            options: Options::default(),
            runtime: None,
        }
    }

    /// Asks for a lock on one key, or on several at once: a [`LockKey`], text, or an array or vector
    /// of either.
    ///
    /// To take a lock again that this request or task holds already, name its owner with
    /// [`Acquire::owner`]; otherwise the acquire waits for its own lock.
    pub fn acquire(&self, keys: impl Into<LockKeys>) -> Acquire {
        Acquire::new(Arc::clone(&self.engine), keys.into())
    }

    /// An identity that nobody else has, for [`Acquire::owner`].
    #[must_use]
    pub fn new_owner(&self) -> Owner {
        self.engine.new_owner()
    }

    /// Whether anybody holds the key, in this process or another.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey), or what the backend says.
    ///
    /// # Cancel safety
    ///
    /// Only asks; may be dropped at any time.
    pub async fn is_locked(&self, key: impl Into<LockKey>) -> Result<bool, Error> {
        Ok(self.inspect(key).await?.is_some())
    }

    /// Who holds the key, in this process or another; `None` if it is free.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey), or what the backend says.
    ///
    /// # Cancel safety
    ///
    /// Only asks; may be dropped at any time.
    pub async fn inspect(&self, key: impl Into<LockKey>) -> Result<Option<LockInfo>, Error> {
        let key = valid(key)?;
        let backend = Arc::clone(&self.engine.backend);
        let holder = backend.inspect(key.clone()).await?;
        Ok(holder.map(|holder| LockInfo::of(&self.engine, &key, holder)))
    }

    /// Takes the lock away from whoever holds it, and wakes those who wait. True if somebody held
    /// it.
    ///
    /// A guard of this manager is lost at once, or, where it was being granted at that moment, at its
    /// first renewal, which follows at once; one of another process is lost at its next renewal. Those
    /// of a fixed [`lease`](crate::Acquire::lease) have no renewals. For the tools of operators, not for
    /// programs.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey), or what the backend says; then the lock may be free
    /// all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, the lock may or may not be taken away; a guard of this manager then hears of
    /// it at its next renewal.
    pub async fn force_release(&self, key: impl Into<LockKey>) -> Result<bool, Error> {
        let key = valid(key)?;
        let engine = &self.engine;
        let seen = engine.event(&key, |lane, _| lane.lease_number());
        let backend = Arc::clone(&engine.backend);
        let outcome = backend.force_release(key.clone()).await?;
        let now = Moment::now();
        engine.event(&key, |lane, effects| {
            lane.released_by_force(seen, now, effects);
        });
        Ok(outcome == ForceReleased::Released)
    }

    /// What this manager holds and waits for now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.engine)
    }

    /// Refuses new acquires, wakes those who wait with
    /// [`ShuttingDown`](ErrorKind::ShuttingDown), and lets holders finish, still renewed, for at
    /// most `grace`. Returns what is left then: nothing, if all were given back.
    ///
    /// Owners that hold a lock may still re-enter it.
    ///
    /// # Cancel safety
    ///
    /// The manager is shut down from the first poll on; dropping the future only ends the waiting.
    pub async fn shutdown(&self, grace: Duration) -> Snapshot {
        self.engine.close();
        // What a runtime that has ended left undone goes on in this one.
        if let Ok(home) = self.engine.current_home() {
            watchdog::adopt_all(&self.engine, home);
        }
        releaser::resume(&self.engine);
        let finished = async {
            self.engine.lanes.emptied().await;
            for home in self.engine.homes.all() {
                home.unresolved.finished().await;
            }
        };
        match by(Moment::now() + grace, finished).await {
            Some(()) => Snapshot::default(),
            None => self.snapshot(),
        }
    }
}

fn valid(key: impl Into<LockKey>) -> Result<LockKey, Error> {
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
}

impl LockManagerBuilder {
    /// How long an acquire waits unless it says otherwise. Default 5 s, at most 366 days; zero is
    /// [`no_wait`](Acquire::no_wait).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = wait;
        self
    }

    /// The length of a lease that the watchdog renews each time a third of it has passed: how long
    /// a lock stays taken after its holder's process died. Default 30 s, between 10 ms and 366
    /// days.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.options.watchdog_timeout = timeout;
        self
    }

    /// How many may wait for one key in this process; more are refused with
    /// [`TooManyWaiters`](ErrorKind::TooManyWaiters) before any command is sent. Default 1 024, at
    /// least 1.
    pub fn max_waiters_per_key(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_key = limit;
        self
    }

    /// How many may wait in this manager; more are refused with
    /// [`Overloaded`](ErrorKind::Overloaded). Default 65 536, at least 1.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.options.max_waiters = limit;
        self
    }

    /// Runs all background work in this runtime. Defaults to the runtime that acquires.
    ///
    /// By default a lock is renewed in the runtime that acquired it, as long as that runtime is driven. Name
    /// another one where handlers block their executor, where the program calls `block_on` from
    /// synchronous code, or where it acquires outside of any Tokio runtime. A runtime with a thread of its
    /// own serves best; it needs timers, and I/O for Redis. Locks are lost when it ends.
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
    /// [`ConfigError`] naming the setting that is out of bounds, or the runtime if it has no timers.
    pub fn build(self) -> Result<LockManager, ConfigError> {
        self.options.validate()?;
        if let Some(runtime) = &self.runtime {
            let _entered = runtime.enter();
            if !timers_work() {
                return Err(ConfigError::new("runtime", NoTimers.to_string()));
            }
        }
        let runtime = self.runtime.map(Runtime::Tokio);
        Ok(LockManager {
            engine: Arc::new(Engine::new(self.backend, self.options, runtime)),
        })
    }
}

impl fmt::Debug for LockManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManagerBuilder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
