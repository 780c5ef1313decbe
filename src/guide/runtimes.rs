//! Runtimes: for programs with several runtimes, blocking handlers or synchronous code.
//!
//! A manager renews locks, releases them, and makes attempts for waiters in tasks. By default these
//! tasks run in the Tokio runtime of the acquire that needs them, so a program can use one manager in
//! several runtimes.
//!
//! | situation | consequence |
//! |---|---|
//! | a runtime idles, blocks or ends | guards of other runtimes are not affected; a waiter for the same key is served at most one response timeout later |
//! | a runtime blocks for longer than a lease | the guards that it acquired are lost |
//! | a runtime ends with guards | its guards expire with their leases, and other runtimes finish its releases |
//! | an acquire outside any runtime, with no `runtime` set | fails with [`Misconfigured`](crate::ErrorKind::Misconfigured) |
//! | a runtime without timers | fails with [`Misconfigured`](crate::ErrorKind::Misconfigured), and the error names `enable_time` |
//! | [`LockManager::connect`](crate::LockManager::connect) to Redis outside any runtime, or in one without timers | fails with [`ConnectError::Config`](crate::ConnectError::Config) |
//! | a runtime without I/O | is supported |
//! | several runtimes used one key, and the backend is unavailable | each retries its own releases of that key, with its own backoff: k runtimes send up to k commands per step |
//!
//! A program with `panic = "abort"` needs timers in each runtime that acquires, and with Redis also I/O in each
//! multi-thread runtime. Tokio has no query for either, so this crate tries them, and catches the panic if one is
//! missing. With `panic = "abort"` that panic aborts the process. `enable_all` enables both.
//!
//! # The thread of the connections
//!
//! A [`RedisBackend`](crate::RedisBackend) opens its connections on a thread named `tower-lock`, which
//! all backends of the process share. Its first connection starts it, and it never ends. So no `current_thread`
//! runtime of the program delays the replies, the messages or the failover of another runtime.
//!
//! A multi-thread runtime with I/O keeps the connections that it opens for commands and messages. It has threads of its
//! own, and a change of threads would cost more than the command. If such a runtime ends, the next command opens
//! another connection, and the thread subscribes again. While all its threads block, a command of another runtime waits
//! for up to one response timeout, and then uses another connection. During that time, a waiter of another runtime
//! notices a release at its next attempt, within 1 s. Connections that a program opened in its own
//! [pool](crate::RedisBackend::from_pool) stay in the runtime that opened them.
//!
//! # A thread for the locks
//!
//! A `current_thread` runtime does not run the watchdog while a handler computes or blocks. If handlers
//! can block for longer than a third of the lease, give the manager a runtime with a thread of its own:
//!
//! ```
//! use std::time::Duration;
//!
//! use tower_lock::{LockManager, Memory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let background = tokio::runtime::Builder::new_multi_thread()
//!     .worker_threads(1)
//!     .thread_name("locks")
//!     .enable_all()
//!     .build()?;
//! let locks = LockManager::builder(Memory::new())
//!     .watchdog_timeout(Duration::from_secs(1))
//!     .runtime(background.handle().clone())
//!     .build()?;
//!
//! let handlers = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! handlers.block_on(async {
//!     let guard = locks.acquire("order:42").await?;
//!     // Blocks the only thread of the handlers for longer than the lease.
//!     std::thread::sleep(Duration::from_millis(1200));
//!     assert!(guard.is_held());
//!     guard.release().await
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! Keep `background` for as long as the manager is used. When that runtime ends, its locks are no longer
//! renewed. It needs timers, which `enable_time` and `enable_all` enable.
//!
//! # Synchronous code
//!
//! A program that calls `block_on` for each acquire drives its runtime only during the call. The guard
//! is then not renewed between two calls. Name a runtime as above; the acquire can run anywhere:
//!
//! ```
//! # use tower_lock::{LockManager, Memory};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let background = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! let locks = LockManager::builder(Memory::new()).runtime(background.handle().clone()).build()?;
//! let guard = background.block_on(async { locks.acquire("report").no_wait().await })?;
//! assert!(guard.is_held());
//! // Dropped outside any runtime: the release runs in `background`.
//! drop(guard);
//! # Ok(())
//! # }
//! ```
