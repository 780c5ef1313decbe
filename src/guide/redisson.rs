//! Sharing locks with Redisson: for services in Rust and Java that lock the same resources.
//!
//! A Java service that uses Redisson's `getLock` and a service that uses this crate exclude each other on the same
//! name. Each notifies the other of a release, and acquires the key after a crash of the other.
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
//! // Redisson has no prefix.
//! let backend = RedisBackend::builder("redis://127.0.0.1:6379").prefix("").connect().await?;
//! let locks = LockManager::builder(backend).build()?;
//! let guard = locks.acquire("order:42").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What was tested
//!
//! `make interop` in the repository runs Redisson 3.16.8 and 4.7.0 against this crate and prints a table. It needs a
//! JDK 17, Maven and Redis 7.
//!
//! | topology | tested |
//! |---|---|
//! | one server, Sentinel, Cluster | mutual exclusion, notifications in both directions, crashes of both sides |
//! | one server | also the turns of Java threads among busy processes, a thread that locks again at once, the watchdogs of both sides, nested holds, `forceUnlock` and names |
//! | one server, Cluster | also shared locks and permits beside `RLock`, and its writes among reads |
//!
//! | here | in Java | result |
//! |---|---|---|
//! | [`acquire`](crate::LockManager::acquire), a [`LockLayer`](crate::LockLayer), [`Locked`](crate::Locked) | `getLock(name)` | exclude and wake each other |
//! | [`inspect`](crate::LockManager::inspect) | `lock()` twice | returns `<uuid>:<thread id>` and a count of 2 |
//! | a guard | `isLocked`, `remainTimeToLive` | `true` and the remaining TTL; `unlock` throws `IllegalMonitorStateException` |
//! | a guard | `forceUnlock` | the guard is lost at its next renewal, at the latest after a third of the lease |
//! | [`force_release`](crate::LockManager::force_release) | `unlock` | throws `IllegalMonitorStateException` |
//! | [`redisson_fencing_tokens`](crate::backend::redis::RedisBackendBuilder::redisson_fencing_tokens) | `getFencedLock(name)` | one sequence of tokens for both, exclude and wake each other; tested with 4.7.0 |
//!
//! # Names
//!
//! | here | in Java |
//! |---|---|
//! | [`LockKey::new`](crate::LockKey::new) of a name with spaces, letters of any script, or hash tags such as `{user}:1` | the same name |
//! | [`LockKey::new`](crate::LockKey::new) of a name with `%`, control characters, or braces that form no hash tag | the name with these characters percent-encoded |
//! | a key of more than 512 bytes | the cut name, which ends in a hash |
//! | [`LockKey::from_parts`](crate::LockKey::from_parts) | the parts joined with `:`, if no part contains `:`, a brace, `%` or a control character |
//!
//! A layer by the path `/orders/42` thus locks `getLock("/orders/42")`. Both sides must use the same database. A
//! `NameMapper` in Java changes the names there. `make interop` compares the slot of each name with Redisson's.
//!
//! Without a prefix, the [permissions](crate::RedisBackend#permissions) name the locks themselves
//! in place of `~lock:*`. They also need `~self-test:* ~{fencing-token*`, for the trial at the connect and for the
//! fencing counter. The queue of the waiters for `order:42` is `{order:42}%queue`, and that of a key with a hash tag, such
//! as `{order}:42`, is `{order}:42%tagged-queue`. So
//! names such as `~order:*` need `~{order:* ~{self-test:*` as well. Otherwise the backend warns when it
//! connects, and the waiters of several processes have no order.
//!
//! # Messages in a Cluster
//!
//! | Redisson | configured with | publishes by | here |
//! |---|---|---|---|
//! | 3.22 and newer | cluster servers, version 7 and newer | `SPUBLISH` | [`Publish::Auto`](crate::backend::redis::Publish::Auto) |
//! | older | cluster servers | `PUBLISH` | [`Publish::Both`](crate::backend::redis::Publish::Both), or [`Plain`](crate::backend::redis::Publish::Plain) if all clients are older |
//! | any | one server, Sentinel | `PUBLISH` | [`Publish::Auto`](crate::backend::redis::Publish::Auto) |
//!
//! With the wrong setting, the locks still exclude each other. A waiter of this crate then attempts once a second. A
//! thread in Java attempts again when the lease of the holder has passed, after 30 s by default. With the right
//! setting, a waiter was notified within 2 ms (median) and 7 ms (99th percentile), on two cores with all servers and
//! JVMs.
//!
//! # What is different
//!
//! - *Owners.* In Java a thread is the owner. Here an [`Owner`](crate::Owner) is the owner, and nested holds are
//!   counted in the process. In Redis the count of a guard is 1. `getHoldCount` in Java counts the holds of its own
//!   thread, so it returns 0 for a guard.
//! - *Turns.* While no other process waits, a lock is handed off inside this process. When one waits, Java or
//!   Rust, the lease returns to Redis at the end of the [turn](super::order).
//! - *Kept leases.* A Java thread waits for a [kept lease](super::operations#kept-leases) as other processes do. With
//!   10 ms, and holds of 4 ms without a pause, it waited for 9 ms (median) and 17 ms (99th percentile).
//! - *Order.* Java waits outside the queue of this crate. While a Java client is subscribed, each round of the
//!   queue includes one turn of 10 ms in which no process of the queue acquires. The turn ends early when a waiter
//!   finds the key held. A JVM that does not run within its turn has the one of the next round.
//!   In a Cluster with plain messages or [`Publish::Both`](crate::backend::redis::Publish::Both), the turn comes every
//!   500 ms instead. A server counts the clients that listen at the primary of the key, as Redisson does by default.
//!   With `subscriptionMode` at `SLAVE`, a Java thread competes without a turn, except in such a Cluster.
//! - *Java threads among each other.* The turn is one for all Java clients, so more processes in the queue leave each
//!   Java thread a smaller part. Redisson wakes one thread of each JVM, and these threads compete for the turn. Beside
//!   two busy processes, four threads of two JVMs had more grants than the queue had rounds, and each of them 0.56 to
//!   0.84 of an equal share. The longest wait of one thread was 0.4 to 1.0 s, and 0.2 s without other processes.
//! - *A Java thread that locks again without a pause.* A Java release leaves the key free, so such a thread competes
//!   with the first process of the queue. With holds of 5 ms, it got 18 % to 70 % of the grants beside one busy
//!   process, and 7 % to 24 % beside four. Its part is larger while no other program needs the cores. The longest wait
//!   of a process was 0.5 s, and that of the thread 1.0 s.
//!
//!   The figures of kept leases and of the last two points are those of `make interop` on two cores, with other programs
//!   at work.
//! - *Loss.* A guard reports its loss. In Java, the `unlock` of a lost lock throws.
//!
//! # What does not work
//!
//! - Fair, read-write, spin and multi locks, and semaphores have another format, or publish no message that this
//!   crate receives. Use other names for them. To an `RLock`, the
//!   [shared locks and permits](super::shared#java-beside-it) of this crate are exclusive locks.
//! - Java cannot take part in a [`Quorum`](crate::Quorum).
