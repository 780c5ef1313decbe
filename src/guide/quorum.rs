//! A quorum of independent nodes: for services whose locks must survive the loss of a server, last writes included.
//!
//! The owner of a majority of the nodes holds the lock.
//!
//! ```text
//!   process ── LockManager ── Quorum ─┬─► Redis 1    granted
//!                                     ├─► Redis 2    granted     3 of 5: held
//!                                     ├─► Redis 3    (hangs)
//!                                     ├─► Redis 4    granted
//!                                     └─► Redis 5    (unavailable)
//! ```
//!
//! ```no_run
//! # #[cfg(feature = "redis")]
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use tower_lock::{LockManager, Quorum, RedisBackend};
//!
//! let mut quorum = Quorum::builder();
//! for host in ["r1", "r2", "r3"] {
//!     // A node that is unreachable at the start must not stop the program.
//!     let node = RedisBackend::builder(format!("redis://{host}")).connect_lazy()?;
//!     quorum = quorum.node(node);
//! }
//! let locks = LockManager::builder(quorum.build()?).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! There is no failover: no node replaces another. The documentation of [`Quorum`](crate::Quorum) describes the
//! guarantees, the settings, and why the tokens increase whichever minority is lost.
//!
//! # Shared locks
//!
//! Each [shared](super::shared) lock needs a majority, as an exclusive one does. Two majorities have a node in common,
//! which grants either a shared or an exclusive lease. So readers may hold the key on different majorities, and while
//! they do, a writer has none.
//!
//! | at the nodes | a reader | a writer |
//! |---|---|---|
//! | a minority is held, in either mode, as after a failed attempt | is granted | is granted |
//! | a majority is held shared | is granted | waits |
//! | a majority is held shared, and a writer of another process waits | waits | waits |
//! | a majority is held exclusively | waits | waits |
//!
//! The tokens increase as with exclusive locks: each exclusive token exceeds those of all earlier readers, and the reverse.
//! A reader whose lease a majority has lost is lost alone.
//!
//! # What it does not guarantee
//!
//! - *Order between processes.* The nodes cannot agree on one queue, so any waiting process may be next. Within a
//!   process, waiters acquire a key in the [order](super::order#where) of their arrival.
//!
//! # What the loss of nodes can do
//!
//! - *A minority is unavailable or hangs:* no effect. The other nodes reply.
//! - *A majority is unavailable:* no lock is granted, and held locks are lost at their deadlines.
//! - *A node returns without its data:* the node may vote for a second owner of a held key. If the first owner
//!   also lacks the vote of another node, two majorities exist. With the `quarantine` of the Redis builder, a
//!   restarted node does not vote until all earlier leases have expired.
