//! Sharing locks with Redisson.
//!
//! A Java service that locks with Redisson's `getLock` and this crate exclude each other on the same
//! name, wake each other at once, and take over from each other after a crash.
//!
//! ```text
//!   Java: redisson.getLock("order:42")        Rust: locks.acquire("order:42")
//!             │                                          │
//!             └─────────────┐              ┌─────────────┘
//!                          ┌┴──────────────┴┐
//!                          │ Redis          │  order:42 → { "<uuid>:<number>": 1 }, ttl 30 s
//!                          │                │  redisson_lock__channel:{order:42} ← 0
//!                          └────────────────┘
//! ```
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_lock::{LockManager, RedisBackend};
//!
//! // Redisson puts nothing before its names.
//! let backend = RedisBackend::builder("redis://127.0.0.1:6379").prefix("").connect().await?;
//! let locks = LockManager::builder(backend).build()?;
//! let guard = locks.acquire("order:42").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What was tested
//!
//! Redisson 3.16.8 and 4.7.0 themselves, on one server, behind Sentinel and in a Cluster: `make
//! interop` in the repository does it again and prints a table. Everywhere mutual exclusion, wake-ups
//! both ways and crashes of both sides; on one server also the watchdogs of both sides, nested holds,
//! `forceUnlock` and names.
//!
//! | here | in Java | |
//! |---|---|---|
//! | [`acquire`](crate::LockManager::acquire), a [`LockLayer`](crate::LockLayer), [`Locked`](crate::Locked) | `getLock(name)` | exclude and wake each other |
//! | [`inspect`](crate::LockManager::inspect) | `lock()` twice | tells `<uuid>:<thread id>`, and 2 as its count |
//! | a guard | `isLocked`, `remainTimeToLive` | `true`, what is left of the lease; `unlock` throws `IllegalMonitorStateException` |
//! | a guard | `forceUnlock` | is told lost by its next renewal, after a third of the lease at the latest |
//! | [`force_release`](crate::LockManager::force_release) | `unlock` | throws `IllegalMonitorStateException` |
//! | [`redisson_fencing_tokens`](crate::backend::redis::RedisBackendBuilder::redisson_fencing_tokens) | `getFencedLock(name)` | one row of tokens for both, exclude and wake each other; tested with 4.7.0 |
//!
//! # Names
//!
//! A name that the program chose, [`LockKey::new`](crate::LockKey::new), is the same name in Java: with
//! spaces, with letters of any script, with hash tags such as `{user}:1`. Not with `%`, control
//! characters, or braces that are no hash tags: those are percent-encoded here, so that no input can
//! stand for another; longer than 512 bytes it ends in a hash. Of parts, [`LockKey::from_parts`](crate::LockKey::from_parts),
//! Java has to join the same with `:`, where no part has a `:`, a brace, `%` or a control character.
//!
//! So a layer by the path `/orders/42` is `getLock("/orders/42")`, `make interop` asks Redisson for the
//! slot of each name, and both sides must be on the same database. A `NameMapper` in Java would change
//! the names there.
//!
//! Without a prefix the [permissions](crate::backend::redis::RedisBackend#permissions) have, in place of
//! `~lock:*`, the names themselves and `~self-test:* ~{fencing-token*`: what is tried out when it
//! connects, and the counter of the tokens. The queue of the waiters for `order:42` is `{order:42}%queue`, so
//! names such as `~order:*` need `~{order:* ~{self-test:*` as well. Otherwise the backend warns when it
//! connects, and the waiters of several processes have no order.
//!
//! # Messages in a Cluster
//!
//! | Redisson | configured with | tells by | here |
//! |---|---|---|---|
//! | 3.22 and newer | cluster servers, version 7 and newer | `SPUBLISH` | [`Publish::Auto`](crate::backend::redis::Publish::Auto) |
//! | older | cluster servers | `PUBLISH` | [`Publish::Both`](crate::backend::redis::Publish::Both); [`Plain`](crate::backend::redis::Publish::Plain) where nothing newer is there |
//! | any | one server, Sentinel | `PUBLISH` | [`Publish::Auto`](crate::backend::redis::Publish::Auto) |
//!
//! With the wrong one the locks still exclude each other. Who waits here looks once a second; a thread in
//! Java looks again when the lease that it was told of has passed, 30 s with the defaults. A waiter was
//! woken after 2 ms as the median, in 99 of 100 cases after 7 ms at most, on two cores with all servers
//! and JVMs.
//!
//! # What is different
//!
//! - *Owners.* In Java a thread is the owner; here it is an [`Owner`](crate::Owner), and nested holds are
//!   counted in the process. In Redis the count of a guard is 1; `getHoldCount` in Java is that of its own
//!   thread, 0.
//! - *Turns.* While no other process waits, a lock is handed off inside this process. When one waits, Java or
//!   Rust, the lease returns to Redis at the end of the [turn](super::order).
//! - *Order.* Java waits outside the queue of this crate. While a Java client is subscribed, each round of the
//!   queue includes one turn of 10 ms in which no process of the queue acquires. A Java release leaves the key
//!   free. A Java thread that locks again without a pause can thus acquire it before any waiter, also repeatedly.
//!   Waiters of both sides then wait until it pauses.
//! - *Loss.* A guard here is told when it is lost. Java's thread is not: its `unlock` throws.
//!
//! # What does not work
//!
//! Fair, read-write, spin and multi locks, and semaphores: they keep something else under their name, or
//! tell nobody here when they are free. A [`Quorum`](crate::Quorum): Java knows nothing of it. Give them
//! other names.
