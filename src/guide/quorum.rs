//! Several stores that know nothing of each other: whoever has most of them has the lock.
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
//!     quorum = quorum.node(RedisBackend::builder(format!("redis://{host}")).connect().await?);
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
//! - *A node back without its data:* it may vote a second time for a key that is held, so that fewer
//!   other votes make a majority. [`quarantine`] keeps such a node from granting until all leases of before
//!   have run out.
//!
//! [`quarantine`]: https://docs.rs/tower-lock/latest/tower_lock/backend/redis/struct.RedisBackendBuilder.html#method.quarantine
