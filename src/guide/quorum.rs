//! Several independent stores: the owner of a majority of them holds the lock.
//!
//! ```text
//!   process ── LockManager ── Quorum ─┬─► Redis 1    granted
//!                                     ├─► Redis 2    granted     3 of 5: held
//!                                     ├─► Redis 3    (hangs)
//!                                     ├─► Redis 4    granted
//!                                     └─► Redis 5    (is down)
//! ```
//!
//! ```no_run
//! # #[cfg(feature = "redis")]
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use tower_lock::{LockManager, Quorum, RedisBackend};
//!
//! let mut quorum = Quorum::builder();
//! for host in ["r1", "r2", "r3"] {
//!     // One that is down at the start must not keep the others from it.
//!     let node = RedisBackend::builder(format!("redis://{host}")).connect_lazy().await?;
//!     quorum = quorum.node(node);
//! }
//! let locks = LockManager::builder(quorum.build()?).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! There is no failover: no node takes the place of another. What that guarantees, why its tokens
//! increase whichever minority is lost, and what to set, is told at [`Quorum`](crate::Quorum).
//!
//! # What the loss of nodes can do
//!
//! - *A minority down, or hanging:* nothing; each command is answered by the others.
//! - *A majority down:* nothing is granted, and what is held is lost at its deadline.
//! - *A node back without its data:* it no longer knows who holds what, and may vote for a second
//!   holder. One such node and one holder's missing vote, and two majorities exist. The `quarantine` of
//!   the Redis builder keeps a restarted node from voting until all earlier leases have expired.
