//! Runtimes: for programs with several runtimes, blocking handlers or synchronous code.
//!
//! A manager has one place for its background work: a thread of its own, named `tower-lock`. It renews locks, watches
//! deadlines, retries releases, and makes attempts for waiters. It starts with the first of these, and ends with the last
//! handle and guard of the manager. So the runtimes of callers can do what they like:
//!
//! | situation | consequence |
//! |---|---|
//! | a runtime idles, blocks or ends | no guard is lost. A waiter for a key whose first attempt or release was sent in that runtime is served at most one response timeout later |
//! | an acquire is not polled | others wait 8 ms longer for the key, and until the deadline of this acquire if it has been granted |
//! | an acquire outside any runtime, or in one without timers | works. Await it with any executor |
//! | synchronous code with `block_on` | keeps its locks between two calls, and releases them at their drop |
//! | a static manager in tests of several runtimes | works |
//! | a test whose clock is paused | see [below](#tests-with-a-paused-clock) |
//! | a subscriber or backend of the program blocks the thread | delays this manager, and no other. Guards end at their deadlines as far as they are not renewed |
//! | a recorder of metrics blocks | delays the metrics of all managers, which a thread of their own reports, and no lock |
//! | [`LockManager::connect`](crate::LockManager::connect) to Redis outside any runtime, or in one without timers | fails with [`ConnectError::Config`](crate::ConnectError::Config) |
//! | a runtime without I/O | is supported |
//! | the system allows no further thread | the runtime of a caller takes the place of the thread, until it ends |
//! | a process that forks | an acquire that has to wait for the thread fails with [`Unavailable`](crate::ErrorKind::Unavailable) in the child, which has no thread of its parent. Build the manager in the child |
//!
//! Commands that a caller awaits are sent in its runtime if that has timers and several threads, because a change of
//! threads costs more than the command. A `current_thread` runtime may idle, so its commands are sent by the thread.
//!
//! A release before the process exits needs [`shutdown`](crate::LockManager::shutdown).
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
//! A [provider of credentials](crate::backend::redis::RedisBackendBuilder::credentials) runs where the connection is opened,
//! mostly on the thread of all backends, so it must not block: it would delay the replies to all of them.
//!
//! # A runtime of your choice
//!
//! [`runtime`](crate::LockManagerBuilder::runtime) replaces the thread, for example if a program may start none. The
//! runtime needs timers. The program drives it for as long as the manager is used. While it does not run, acquires that
//! need it fail at the end of their wait, and guards are lost at their deadlines. Once it has ended, acquires fail with
//! [`Unavailable`](crate::ErrorKind::Unavailable).
//!
//! ```
//! # use tower_lock::{LockManager, Memory};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let background = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! let locks = LockManager::builder(Memory::new()).runtime(background.handle().clone()).build()?;
//! let guard = background.block_on(async { locks.acquire("report").no_wait().await })?;
//! assert!(guard.is_held());
//! // Dropped outside any runtime: the release runs in `background`.
//! drop(guard);
//! # Ok(())
//! # }
//! ```
//!
//! # Blocking code
//!
//! ```
//! use std::time::Duration;
//!
//! use tower_lock::{LockManager, Memory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = LockManager::builder(Memory::new())
//!     .watchdog_timeout(Duration::from_secs(1))
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
//! # Tests with a paused clock
//!
//! A manager that is built in a runtime whose clock is paused lives in that runtime, so its leases and waits follow that
//! clock. Once the runtime has ended, the next one that acquires takes its place. A manager that is built outside of such
//! a runtime, or before `pause`, follows the clock of the system.
