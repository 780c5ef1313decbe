//! The settings of a manager.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::manager::LockManager;
use crate::ConfigError;
use crate::backend::{Backend, Erased, ErasedBackend};
use crate::lock::engine::Engine;
use crate::lock::engine::options::Options;
#[cfg(feature = "tracing")]
use crate::lock::engine::trace_keys::TraceKeys;
use crate::observe::Tally;
use crate::task::{Handle, NoTimers, Runtime, timers_work};
#[cfg(feature = "test-util")]
use crate::test_util::SimulatedRuntime;

/// Settings of a [`LockManager`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct LockManagerBuilder {
    backend: Arc<dyn ErasedBackend>,
    options: Options,
    runtime: Option<Runtime>,
    tally: Arc<Tally>,
}

impl LockManager {
    /// Creates a builder of a manager on any [`Backend`], with the defaults of [`LockManagerBuilder`].
    pub fn builder(backend: impl Backend) -> LockManagerBuilder {
        let tally = Arc::default();
        LockManagerBuilder {
            backend: Erased::counted_by(backend, &tally),
            options: Options::default(),
            runtime: None,
            tally,
        }
    }
}

impl LockManagerBuilder {
    /// Replaces the backend.
    pub(crate) fn at(self, backend: impl Backend) -> Self {
        Self {
            backend: Erased::counted_by(backend, &self.tally),
            ..self
        }
    }

    /// Sets how long an acquire waits by default. Defaults to 5 s.
    ///
    /// At most 366 days; zero is [`no_wait`](crate::manager::Acquire::no_wait).
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

    /// Sets for how long the lease of a dropped lock stays in this process for the next acquire of its key. Defaults to
    /// zero, with which no lease stays.
    ///
    /// At most 100 ms. An acquire that takes such a lease sends no command, and its fencing token is a fresh one. A lease
    /// stays only if its key comes back: the last acquire of the key here began within this time after the lock before it
    /// ended. Other keys are free at once.
    ///
    /// Other processes wait at most this time longer, however often the key comes back here: the time counts from the
    /// grant by the backend, which then passes the key to a process that waits. A single attempt
    /// ([`no_wait`](crate::manager::Acquire::no_wait)) of another process fails for as long, although no owner holds the
    /// lock. If this process crashes, the key stays held for the rest of the lease, as that of a holder does.
    ///
    /// Only exclusive, renewed locks of one key are kept, and only if their guards are dropped:
    /// [`LockGuard::release`](crate::LockGuard::release) always releases. The setting has no effect on a
    /// [`Quorum`](crate::Quorum), and on Redis with `min_replicas`, with a quarantine, or with the tokens of Redisson.
    /// [`guide::operations`](crate::guide::operations#kept-leases) states when not to use it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_lock::{LockManager, Memory};
    ///
    /// let locks = LockManager::builder(Memory::new())
    ///     .keep_released(Duration::from_millis(10))
    ///     .build()?;
    /// # drop(locks);
    /// # Ok::<_, tower_lock::manager::ConfigError>(())
    /// ```
    pub fn keep_released(mut self, time: Duration) -> Self {
        self.options.keep_released = time;
        self
    }

    /// Sets the maximum number of waiters per key in this process. Defaults to 1,024.
    ///
    /// Further acquires are rejected with [`TooManyWaiters`](crate::ErrorKind::TooManyWaiters): before any command
    /// is sent, but those of permits after their first attempt. Waiters for permits are counted apart. At least 1.
    ///
    /// A request that waits keeps a stream of its HTTP/2 connection, of which hyper accepts 200 at a time by default. If
    /// all requests of a proxy or a gRPC channel share one connection, 200 waiters for one key delay its requests for
    /// all other keys until one of them ends. A layer sees no connection: set this limit below the number of streams, or
    /// set hyper's `max_concurrent_streams` above this limit. Its builder of HTTP/2 connections has it, as have
    /// hyper-util's `auto::Builder::http2` and tonic's `Server`.
    pub fn max_waiters_per_key(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_key = limit;
        self
    }

    /// Sets the maximum number of waiters of this manager. Defaults to 65,536.
    ///
    /// Further acquires are rejected with [`Overloaded`](crate::ErrorKind::Overloaded). At least 1.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.options.max_waiters = limit;
        self
    }

    /// Sets how much of its body a request reads while it waits in a [`LockLayer`](crate::LockLayer) or a
    /// [`LockScopeLayer`](crate::LockScopeLayer). Defaults to 64 KiB. With 0, it reads nothing.
    ///
    /// In bytes of memory. The frame that exceeds the bound is kept as it is. See
    /// [`guide::http`](crate::guide::http#bodies-of-requests-that-wait).
    pub fn read_ahead(mut self, bytes: usize) -> Self {
        self.options.read_ahead = bytes;
        self
    }

    /// Sets how much of their bodies all waiting requests of this manager read. Defaults to 32 MiB. With 0, they read
    /// nothing.
    ///
    /// In bytes of memory, which a request uses until its handler reads them. Each thread may exceed the bound by one
    /// frame.
    pub fn max_read_ahead(mut self, bytes: usize) -> Self {
        self.options.max_read_ahead = bytes;
        self
    }

    /// Writes keys into the span of each acquire that waits. By default, traces contain no keys.
    ///
    /// Keys can contain personal data. [`TraceKeys::hashed`] writes hashes that only the holder of the secret can
    /// compare with a known key.
    ///
    /// ```
    /// use tower_lock::{LockManager, Memory};
    /// use tower_lock::manager::TraceKeys;
    ///
    /// let secret = [7; 32]; // From the configuration.
    /// let locks = LockManager::builder(Memory::new())
    ///     .trace_keys(TraceKeys::hashed(secret))
    ///     .build()?;
    /// # drop(locks);
    /// # Ok::<_, tower_lock::manager::ConfigError>(())
    /// ```
    #[cfg(feature = "tracing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
    pub fn trace_keys(mut self, trace_keys: TraceKeys) -> Self {
        self.options.trace_keys = Some(trace_keys);
        self
    }

    /// Sets the runtime for the background work: renewals, deadlines, retries, and attempts for waiters. Defaults to a
    /// thread of this manager.
    ///
    /// The thread starts with its first work, and ends with the last handle and guard. So a runtime that idles, blocks
    /// or ends keeps its locks by default, and `block_on` in synchronous code needs no setting. Set a runtime if the
    /// program must not start threads. It needs timers, and the program has to drive it for as long as the manager is
    /// used. While it does not run, acquires that need it fail at the end of their wait, and guards are lost at their
    /// deadlines. See [`guide::runtimes`](crate::guide::runtimes).
    ///
    /// A manager that is built in a runtime whose clock is paused, as by `#[tokio::test(start_paused = true)]`, has that
    /// runtime by default. Once it has ended, the next runtime that acquires takes its place.
    ///
    /// With `panic = "abort"`, a runtime without timers aborts the process in [`build`](Self::build), in place of an
    /// error.
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
        self.runtime = Some(Runtime::Tokio(runtime));
        self
    }

    /// As [`runtime`](Self::runtime), for a runtime that a test drives.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn simulated_runtime(mut self, runtime: Arc<dyn SimulatedRuntime>) -> Self {
        self.runtime = Some(Runtime::Simulated(runtime));
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
        let mut engine = Engine::new(self.backend, self.options, self.runtime);
        engine.tally = self.tally;
        let engine = Arc::new(engine);
        #[cfg(feature = "metrics")]
        {
            // A series that begins above zero shows no increase.
            engine.report();
            engine.report_regularly();
        }
        Ok(LockManager::of(engine))
    }
}

impl fmt::Debug for LockManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManagerBuilder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
