//! One Redis server: for services that have one Redis, or can afford to wait for its restart.
//!
//! ```text
//!   process A                         process B
//!  ┌──────────────────────┐          ┌──────────────────────┐
//!  │ lanes ── commands ───┼────┐ ┌───┼── commands ── lanes  │
//!  │   └───── messages ───┼──┐ │ │ ┌─┼── messages ────┘     │
//!  └──────────────────────┘  │ │ │ │ └──────────────────────┘
//!                           ┌┴─┴─┴─┴┐
//!                           │ Redis │   lock:order:42 → { "<uuid>:7": 1 }, ttl 30 s
//!                           └───────┘
//! ```
//!
//! Each process has one multiplexed connection for commands. The setting
//! [`connections`](crate::backend::redis::RedisBackendBuilder::connections) opens more. While the process has
//! waiters, it has one more connection for messages.
//!
//! ```no_run
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use tower_lock::LockManager;
//!
//! let locks = LockManager::connect("redis://locker:secret@127.0.0.1:6379").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it guarantees
//!
//! While the server keeps its data, evicts nothing, and its clock does not step, each key has at most one holder.
//! Redis counts a TTL by the wall clock.
//!
//! # What a restart can do
//!
//! - *With its data:* holders are renewed if the server is back before their deadline.
//! - *Empty:* all locks are free. A holder detects its loss when its process has reconnected, or at its deadline.
//!   Until then another owner may hold the same key. Tokens keep growing, because the counter starts at the server's
//!   clock.
//! - *With its data except for the last writes* (`appendfsync everysec` and a crash): the same, for the locks
//!   in these writes.
//! - *From an older snapshot* (the default persistence): the same, for all locks since the snapshot.
//!
//! With a [`quarantine`](crate::backend::redis::RedisBackendBuilder::quarantine), a restart of any kind pauses all
//! grants until earlier leases have expired. Holders whose leases survived the restart keep them. A failover to a
//! replica does not pause grants, because the process of the replica is older.
//!
//! # Fencing tokens
//!
//! All locks under one prefix take their tokens from one counter. It moves with each grant, and stays within
//! 1 ms of the server's clock. The tokens of a lock increase under these conditions:
//!
//! | condition | otherwise |
//! |---|---|
//! | all processes use the same prefix for the lock | the key `k` under `lock:` and the key `lock:k` under `""` are one lock with two counters: tokens can repeat or decrease between grants within 1 ms, and for as long as the clock is behind one of the counters |
//! | all processes use [`redisson_fencing_tokens`](crate::backend::redis::RedisBackendBuilder::redisson_fencing_tokens), or none does | the tokens come from unrelated counters |
//! | the server has its counter, or its clock is past the lost tokens | tokens repeat until the clock is past them |
//!
//! The last condition concerns an empty restart, a restart from an older snapshot, and a failover that lost
//! grants. The clock is past the lost tokens if it has reached the time of the last lost grant. If the clock
//! stepped back before that grant, it must also have reached its value before the step.
//!
//! Other clients of the lock, such as Redisson's `getLock`, take no token and change no counter.
//!
//! # What to set
//!
//! | on the server | why |
//! |---|---|
//! | `maxmemory-policy noeviction` | other policies evict held locks when memory is short |
//! | `appendonly yes`, `appendfsync always` | a grant is on disk before the reply; with `everysec`, a crash may lose the writes of the last second |
//! | a clock that slews and does not step | a step forward ends leases early; a step back lets the leases of ended processes last longer, and, followed by a loss of data, repeats fencing tokens |
//!
//! | in this crate | default | consequence |
//! |---|---|---|
//! | [`watchdog_timeout`](crate::LockManagerBuilder::watchdog_timeout) | 30 s | the lock of a process that died is free after it; an outage shorter than two thirds of it costs no lock |
//! | [`response_timeout`](crate::backend::redis::RedisBackendBuilder::response_timeout) | 500 ms | keep it well below a third of the watchdog timeout |
//! | [`connect_timeout`](crate::backend::redis::RedisBackendBuilder::connect_timeout) | 2 s | keep it well below a third of the watchdog timeout |
