//! A primary, its replicas, and the sentinels that choose between them.
//!
//! ```text
//!   process                       sentinels
//!  ┌───────────┐   who is it?    ┌───┐┌───┐┌───┐
//!  │           ├────────────────►│ 1 ││ 2 ││ 3 │   asked for each new connection,
//!  │           │◄────────────────┤   ││   ││   │   and while anybody holds or waits
//!  │           │   most say: P   └───┘└───┘└───┘
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
//! // The login is that of the primary; sentinels have their own: `sentinel_auth`.
//! let url = "redis+sentinel://locker:secret@s1:26379,s2:26379,s3:26379/mymaster";
//! let locks = LockManager::connect(url).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it guarantees
//!
//! One holder for each key as long as no failover loses a write.
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
//! A replica copies after the primary has answered. A lock that the new primary never saw is free
//! there: its holder is told at the first renewal, at once after the reconnect, and until then
//! another may hold the key. The fencing token keeps their writes apart. It grows over a failover if the
//! clock of the new primary is past the tokens that it never saw: see
//! [fencing tokens](super::one_server#fencing-tokens).
//!
//! [`min_replicas`](crate::backend::redis::RedisBackendBuilder::min_replicas) narrows the gap: a
//! grant counts only when so many replicas have it. If that is all of them, none can be chosen that
//! has not; with fewer, one that lags may be.
//!
//! A release that the new primary never saw keeps the key taken there until the lease has run out.
//! `SENTINEL FAILOVER` is no gentler: the old primary goes on for many seconds, until the sentinels
//! make it a replica. It is left as soon as most of them name the new one; what was written to it
//! after the new one had taken over, a second or so before, is lost.
//!
//! A primary that was cut off with some of its clients goes on granting to them until it finds out:
//! `min-replicas-to-write 1` and `min-replicas-max-lag` on the server bound that time.
//!
//! Locks that survive are renewed at the new primary; waiters there are served within a second; a
//! failover that takes longer than two thirds of the watchdog timeout costs all locks.
//!
//! # What to set
//!
//! | on the servers | why |
//! |---|---|
//! | `maxmemory-policy noeviction`, on the replicas, too | as on [one server](super::one_server) |
//! | `appendonly yes`, on the primary, too | a primary that restarts empty before anybody notices makes its replicas empty |
//! | `min-replicas-to-write 1` | a primary that was cut off stops |
//! | `down-after-milliseconds`, `failover-timeout` | together below two thirds of the watchdog timeout |
//! | an odd number of sentinels, at least three, on different machines; all of them in the URL, each once | a majority has to agree |
//!
//! The login in the URL is that of the primary. The sentinels have one of their own, or none:
//! [`sentinel_auth`](crate::backend::redis::RedisBackendBuilder::sentinel_auth). Its user needs
//! `+sentinel|get-master-addr-by-name +sentinel|master`. Without the second one, the epochs are unknown,
//! and only a majority replaces a known primary.
//!
//! If this process cannot reach the address that the sentinels name, as behind Docker or NAT, set
//! [`address_map`](crate::backend::redis::RedisBackendBuilder::address_map). A password or token of the primary that
//! changes comes from [`credentials`](crate::backend::redis::RedisBackendBuilder::credentials).
