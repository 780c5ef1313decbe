//! Many primaries that share the keys by slots, each with replicas.
//!
//! ```text
//!   process
//!  ┌────────────────────────┐
//!  │ key ─► slot ─► node    │   slots 0–5460      slots 5461–10922   slots 10923–16383
//!  │                        │   ┌───┐   ┌───┐     ┌───┐   ┌───┐      ┌───┐   ┌───┐
//!  │        commands ───────┼──►│ A ├──►│ a │  ┌─►│ B ├──►│ b │   ┌─►│ C ├──►│ c │
//!  │        messages ───────┼──►│   │   └───┘  │  │   │   └───┘   │  │   │   └───┘
//!  │           ⋮     ───────┼───┴───┴──────────┘  └───┘           │  └───┘
//!  │                 ───────┼──────────────────────────────────────┘
//!  └────────────────────────┘   to each node connections of its own
//! ```
//!
//! ```no_run
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use tower_lock::LockManager;
//!
//! // Some of the nodes; they name the others.
//! let locks = LockManager::connect("redis+cluster://locker:secret@n1:6379,n2:6379").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it guarantees
//!
//! For each slot what [Sentinel](super::sentinel) guarantees: one holder for each key as long as no
//! failover loses a write. A lock, its channel and its fencing counter are in one slot, so there are at
//! most 16 384 counters.
//!
//! A node that hangs concerns its own keys only: every node has its own connections, and renewals and
//! releases go to each by themselves. Several keys in one acquire may be in several slots; all are
//! held, or none.
//!
//! Slots may move while their locks are held: commands follow them (`MOVED`, `ASK`), and so do
//! subscriptions. While a slot is moving, its locks remain available, also if the migration is never finished:
//!
//! - An acquire sends a call for the lock and then one for its token, after one or two calls with the reply
//!   `TRYAGAIN`.
//! - The node that executes a release may not have the subscriptions. Waiters then poll, at least once a
//!   second, and a busy lock goes to another process at each end of its hand-off time.
//!
//! # One endpoint for several servers
//!
//! A proxy or a managed service may have one address for all nodes. Its URL is that of one server, `redis://`.
//! Such an endpoint rejects calls over several slots (`CROSSSLOT`). The backend notices that when it connects,
//! or at the first acquire after [`connect_lazy`]. From then on it uses one counter per slot and calls for one
//! slot, as in a cluster. The tokens of a guard of several keys then differ, as in a cluster.
//!
//! - An endpoint must reject such a call. A proxy that sends it to the server of its first key, without a
//!   check, splits the locks among its servers. The backend cannot detect that, and two owners can hold a key.
//! - `?protocol=2` in the URL is for an endpoint without RESP3. There are then no subscriptions, waiters poll at
//!   intervals of up to 500 ms, and a busy lock goes to another process at each end of its hand-off time. With
//!   [`notify`], waiters subscribe at another address.
//! - Without `?protocol=2`, [`connect`] fails if the endpoint rejects `HELLO 3` or `SUBSCRIBE`.
//! - [`min_replicas`] requires an endpoint that passes `WAIT` on to the server of the lock.
//!
//! [`connect`]: crate::backend::redis::RedisBackendBuilder::connect
//! [`connect_lazy`]: crate::backend::redis::RedisBackendBuilder::connect_lazy
//! [`min_replicas`]: crate::backend::redis::RedisBackendBuilder::min_replicas
//! [`notify`]: crate::backend::redis::RedisBackendBuilder::notify
//!
//! # Nodes behind Docker, NAT or a tunnel
//!
//! Nodes report the addresses of the other nodes. [`address_map`] returns the address to connect to for each of
//! them, redirections included. The nodes in the URL are connected to as written.
//!
//! [`address_map`]: crate::backend::redis::RedisBackendBuilder::address_map
//!
//! # What a failover can do
//!
//! The same as with Sentinel, for the keys of one node. While a slot has no node
//! (`CLUSTERDOWN`), its keys are unavailable, and with `cluster-require-full-coverage yes` all others,
//! too.
//!
//! # Messages
//!
//! Since version 7 releases are told by sharded messages (`SPUBLISH`), which stay at the node of the
//! lock; below, by plain ones, which every node repeats to every other. Those who listen for the one do
//! not hear the other: with older clients of Redisson in the same cluster, set
//! [`Publish::Both`](crate::backend::redis::Publish::Both).
//!
//! A process hands a busy lock on among its own requests for 50 ms at most, if others wait. With
//! sharded messages it can ask the node whether any do. With plain ones it cannot, and gives the lock
//! up each time.
//!
//! # What to set
//!
//! On the servers the same as with [Sentinel](super::sentinel), with `cluster-node-timeout` in place of
//! the times of the sentinels: below two thirds of the watchdog timeout.
//! [`min_replicas`](crate::backend::redis::RedisBackendBuilder::min_replicas) counts the replicas of the
//! node that has the key.
//! Names with one tag (`{user}:1`, `{user}:2`) share a slot: their renewals share commands,
//! and their fate.
