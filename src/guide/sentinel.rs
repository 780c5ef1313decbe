//! Redis Sentinel: for services that must remain available when a Redis server fails.
//!
//! A primary grants the locks, replicas copy it, and sentinels elect a replica if the primary fails.
//!
//! ```text
//!   process                       sentinels
//!  ┌───────────┐    primary?     ┌───┐┌───┐┌───┐
//!  │           ├────────────────►│ 1 ││ 2 ││ 3 │   asked for each new connection,
//!  │           │◄────────────────┤   ││   ││   │   and while there are holders or waiters
//!  │           │   majority: P   └───┘└───┘└───┘
//!  │           │
//!  │           │    commands     ┌───┐ copies, later  ┌────┐
//!  │           ├────────────────►│ P ├───────────────►│ R1 │
//!  │           │◄────────────────┤   ├───────────────►│ R2 │
//!  └───────────┘    messages     └───┘                └────┘
//! ```
//!
//! ```no_run
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use tower_lock::LockManager;
//!
//! // The login is for the primary. `sentinel_auth` sets the login for the sentinels.
//! let url = "redis+sentinel://locker:secret@s1:26379,s2:26379,s3:26379/mymaster";
//! let locks = LockManager::connect(url).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it guarantees
//!
//! While no failover loses a write and the clocks of the servers agree, each key has at most one holder.
//!
//! Commands go only to a server that confirms that it is the primary, at the address that the sentinels
//! name. While there are holders or waiters, or a connection is being opened, the sentinels are asked four
//! times a second. A connection to another server is dropped, and so is one whose server rejects writes.
//!
//! | sentinels of the URL | the primary |
//! |---|---|
//! | more than half name the same server | that server |
//! | no majority for less than 2 s | the known one, or else the server of the latest failover that a sentinel reports |
//! | no majority for longer | the server of a later failover than that of the known one, even if only one sentinel reports it; otherwise the known one |
//! | none replies | existing connections stay, and new ones wait |
//!
//! Each failover has a number, the configuration epoch, and a majority of all sentinels must elect the
//! sentinel that performs it. A sentinel that was cut off reports an earlier one, so it cannot replace a
//! known primary. If some sentinels were replaced by others at new addresses, one address of the URL that
//! still replies is enough. Sentinels that the URL does not name are not asked, so use DNS names, or
//! restart the process with a new URL, before the last one is replaced.
//!
//! A sentinel that does not reply within the response timeout is asked again over a new connection.
//!
//! # What a failover can do
//!
//! A replica copies a write after the primary has replied. If the new primary never received a grant, the key is
//! free there. The holder detects its loss at its first renewal, directly after the reconnect. Until then another
//! owner may hold the key, and the fencing token keeps their writes apart. The token grows over a failover if the
//! clock of the new primary is past the tokens that it never received: see
//! [fencing tokens](super::one_server#fencing-tokens).
//!
//! | event | consequence |
//! |---|---|
//! | the new primary never received a release | the key stays held until the lease expires |
//! | the clock of the new primary is ahead (Redis 7 or newer, Valkey) | leases end earlier by the difference. A key whose lease has less left is free at once, before its holder detects the loss |
//! | its clock is behind (Redis 7 or newer, Valkey) | the lock of a process that died stays held for longer, by the difference |
//! | `SENTINEL FAILOVER` | the old primary accepts writes for many seconds; the backend leaves it when a majority of the sentinels names the new one, and loses the writes of about the last second |
//! | a primary that hung replies again after the failover | it takes itself for the primary until a sentinel demotes it; a process that has not asked the sentinels since, which it does every 250 ms, may get a lock there that the new primary does not know |
//! | a primary is cut off together with some clients | it grants locks to them until it stops accepting writes: see `min-replicas-to-write` below |
//! | no primary is elected yet | an acquire waits, and ends as `Unavailable` (503 with `Retry-After`) after its wait |
//! | the new primary has fewer replicas than `min-replicas-to-write` or `min_replicas` | no lock is granted until a replica joins. Clients receive 503, and 409 for a single attempt at a key whose lease has not expired |
//! | the failover takes less than two thirds of the watchdog timeout | the surviving locks are renewed at the new primary, and waiters are served within 1 s |
//! | the failover takes longer | all locks are lost |
//!
//! With [`min_replicas`](crate::backend::redis::RedisBackendBuilder::min_replicas), a grant counts only when that many
//! replicas have it. If all replicas must have it, every elected replica has the lock. With fewer, a replica without
//! the lock may be elected.
//!
//! # What to set
//!
//! | on the servers | why |
//! |---|---|
//! | `maxmemory-policy noeviction`, also on the replicas | as on [one server](super::one_server) |
//! | `appendonly yes`, also on the primary | a primary that restarts empty before the sentinels notice makes its replicas empty |
//! | `min-replicas-to-write 1`, `min-replicas-max-lag`, with two replicas or more | a primary that is cut off stops accepting writes after this lag. With one replica, the elected one has none, so it rejects all writes until the failed server is back |
//! | `down-after-milliseconds`, `failover-timeout` | together below two thirds of the watchdog timeout, such as 5 s and 10 s for the default of 30 s; those of Redis are longer. A failover takes `down-after-milliseconds` and 1 s to 3 s; requests whose wait is longer wait through it |
//! | the user of the URL on the primary and on every replica | Redis does not replicate users |
//! | an odd number of sentinels, at least three, on different machines; all of them in the URL, each once | a majority has to agree |
//!
//! The login in the URL is for the primary. The setting
//! [`sentinel_auth`](crate::backend::redis::RedisBackendBuilder::sentinel_auth) is for sentinels that require a login.
//! Its user needs
//! `+sentinel|get-master-addr-by-name +sentinel|master`. Without the second one, the epochs are unknown,
//! and only a majority replaces a known primary.
//!
//! If this process cannot reach the address that the sentinels name, as behind Docker or NAT, set
//! [`address_map`](crate::backend::redis::RedisBackendBuilder::address_map). If the password or
//! token of the primary changes, set [`credentials`](crate::backend::redis::RedisBackendBuilder::credentials).
//!
//! # An example, from the servers to the program
//!
//! Two servers have these lines in `redis.conf`. The first server begins as the primary. The second one also has
//! `replicaof 10.0.0.1 6379`, and is its replica:
//!
//! ```text
//! appendonly yes
//! maxmemory-policy noeviction
//! ```
//!
//! Three sentinels on other machines have these lines in `sentinel.conf`, with the first primary. Two of the three
//! must agree that it failed:
//!
//! ```text
//! sentinel monitor mymaster 10.0.0.1 6379 2
//! sentinel down-after-milliseconds mymaster 5000
//! sentinel failover-timeout mymaster 10000
//! ```
//!
//! The program names the sentinels and `mymaster`:
//!
//! ```no_run
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use std::time::Duration;
//! use tower_lock::LockManagerBuilder;
//!
//! let url = "redis+sentinel://10.0.0.11:26379,10.0.0.12:26379,10.0.0.13:26379/mymaster";
//! let locks = LockManagerBuilder::new()
//!     // A failover takes 6 s to 8 s here. A waiter with a longer wait is served after it. A `wait` of a layer or a
//!     // scope replaces this one, so raise it there as well.
//!     .wait(Duration::from_secs(10))
//!     // The default. Locks survive a failover that takes less than two thirds of it, 20 s.
//!     .watchdog_timeout(Duration::from_secs(30))
//!     .connect(url)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! With one replica, leave `min-replicas-to-write` at its default, 0. With 1, the elected server has no replica yet,
//! and no lock is granted until the failed server is back. With 0, a primary that is cut off together with some
//! clients grants locks to them until it is reachable again, so let the storage check the
//! [fencing token](super::fencing). A second replica removes this choice: set `min-replicas-to-write 1` and
//! `min-replicas-max-lag 5` on all three servers. The elected server then has the remaining replica.
