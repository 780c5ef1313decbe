//! Redis Cluster: for services that have one, or that need more locks than one server can grant.
//!
//! Several primaries share the keys by slots, and each primary has replicas.
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
//!  └────────────────────────┘   separate connections to each node
//! ```
//!
//! ```no_run
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use tower_lock::LockManager;
//!
//! // Some of the nodes, which report the others.
//! let locks = LockManager::connect("redis+cluster://locker:secret@n1:6379,n2:6379").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it guarantees
//!
//! While no failover loses a write and the clocks of the nodes agree, each key has at most one holder, as with
//! [Sentinel](super::sentinel). A lock, its channel and its fencing counter are in one slot, so there are at most
//! 16,384 counters.
//!
//! A node that hangs affects only its own keys. Each node has its own connections, and renewals and releases are
//! sent to each node separately. The keys of one acquire may be in several slots: all are held, or none.
//!
//! A slot may move while its locks are held. Commands follow the slot (`MOVED`, `ASK`), and so do
//! subscriptions. While a slot is moving, its locks remain available, even if the migration is never finished:
//!
//! - An acquire receives the reply `TRYAGAIN` once or twice. It then acquires the lock in one call, and its token in
//!   another.
//! - The node that executes a release may not have the subscriptions. Waiters then poll, at least once a
//!   second, and a busy lock goes to another process at each end of its hand-off time.
//!
//! # Nodes of another cluster
//!
//! A node can leave the cluster and become a part of another one, at the same address. That cluster would grant keys
//! that are held in this one. Hence the process compares the ids of the nodes:
//!
//! - A view of the cluster counts only if it shares an id with the last one, that of a primary or a replica. So does
//!   each new connection to a node, and thus each redirection to a new one. An idle process refreshes its view at
//!   least every 30 s.
//! - If nodes of another cluster reply and no known one does, callers receive *unavailable*, and one line is logged. The
//!   other cluster counts when all leases must have expired: after the longest lease that the process has requested
//!   or seen, and at least the default watchdog timeout of 30 s or the [`quarantine`]. The time starts at the first
//!   look that no known node answers, and starts again at each reply of one.
//! - The hosts in the URL must belong to one cluster. [`connect`] fails if it finds two.
//!
//! The price: if all nodes are replaced while no process looks, within 30 s at most, no lock is granted for the
//! longest lease. So replace the nodes in two steps, 30 s apart. A connection to a known node takes one more round
//! trip. Three things are not detected: servers that report no ids, a node that was reset with
//! `CLUSTER RESET SOFT`, which keeps its id, and a process that starts while only nodes of the other cluster reply.
//!
//! # One endpoint for several servers
//!
//! A proxy or a managed service may have one address for all nodes. Its URL is that of one server, `redis://`.
//! Such an endpoint rejects calls over several slots (`CROSSSLOT`). Each new connection writes 64 keys under the
//! prefix in one call, with a TTL of 10 s, and deletes each alone. So the backend notices it when it connects. From
//! then on it uses one counter per slot and calls for one slot, as in a cluster. The tokens of a guard of several
//! keys then differ, as in a cluster.
//!
//! - An endpoint must reject such a call. A proxy that sends it to the server of its first key, without a check,
//!   spreads the locks over its servers, and two owners could hold a key. An example is the `redis_proxy` of Envoy
//!   with several upstream hosts. [`connect`] then fails with [`ConnectError::Refused`]. Use one upstream, or make the
//!   servers a cluster and use `redis+cluster://`.
//! - If a later connection finds such a proxy, grants are rejected as [`Refused`](crate::ErrorKind::Refused), and one line is logged. Held
//!   locks are still renewed and released. A connection that is opened once a second looks whether it is over.
//! - `?protocol=2` in the URL is for an endpoint without RESP3. There are then no subscriptions, waiters poll at
//!   intervals of up to 100 ms, and a busy lock goes to another process at each end of its hand-off time. With
//!   [`notify`], waiters subscribe at another address.
//! - Without `?protocol=2`, [`connect`] fails if the endpoint rejects `HELLO 3` or `SUBSCRIBE`.
//! - [`min_replicas`] requires an endpoint that passes `WAIT` on to the server of the lock.
//!
//! # An endpoint that moves
//!
//! A virtual address, a service name or a load balancer may lead to another server after a failover, while open
//! connections stay at the former one. That server rejects the next script (`READONLY`, `MASTERDOWN`, or a redirection
//! to the address that was asked), and ends a `WAIT` (`UNBLOCKED`). For one server, a pool, a cluster and a primary that
//! sentinels name:
//!
//! - The connection that received the reply takes no new command, and closes after those in flight. The command is sent
//!   once more over a new connection.
//! - Before their next command, the other connections to the address ask for the role in the same write. If the server
//!   is a replica, its reply to the command is ignored. Subscriptions are checked when a new connection is open.
//! - Idle connections for [`min_replicas`] close, and so do those of a
//!   [pool](crate::RedisBackend::from_pool) of the program.
//! - From the first such reply on, a process opens at most 10 connections to the address within 3 s while it leads to a
//!   wrong server. With [`min_replicas`], one more for each acquire that was in flight before that reply. Acquires wait,
//!   or end as *unavailable*, and are served within about 0.5 s after it leads to the primary.
//!
//! `LOADING`, `TRYAGAIN`, `CLUSTERDOWN` and redirections to another address keep the connection.
//!
//! [`connect`]: crate::backend::redis::RedisBackendBuilder::connect
//! [`ConnectError::Refused`]: crate::ConnectError::Refused
//! [`min_replicas`]: crate::backend::redis::RedisBackendBuilder::min_replicas
//! [`quarantine`]: crate::backend::redis::RedisBackendBuilder::quarantine
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
//! A failover affects the keys of one node, as [with Sentinel](super::sentinel#what-a-failover-can-do). While a slot
//! has no node (`CLUSTERDOWN`), its keys are unavailable. With `cluster-require-full-coverage yes`, all other keys
//! are unavailable as well.
//!
//! # Messages
//!
//! | servers | releases are published by | messages reach |
//! |---|---|---|
//! | Redis 7 or newer, Valkey | sharded messages, `SPUBLISH` | subscribers at the node of the lock |
//! | Redis 6.2 | plain messages, `PUBLISH` | subscribers at any node |
//!
//! A subscriber to one kind does not receive the other kind. If older Redisson clients use the same cluster, set
//! [`Publish::Both`](crate::backend::redis::Publish::Both).
//!
//! While other processes wait, a process hands a busy lock off among its own requests for at most 50 ms. With
//! sharded messages, the node of the lock can count the subscribers. With plain messages it cannot, so the process
//! releases the lock at the end of each turn.
//!
//! # What to set
//!
//! - Set the servers as with [Sentinel](super::sentinel#what-to-set). Keep `cluster-node-timeout` below two thirds of
//!   the watchdog timeout.
//! - [`min_replicas`](crate::backend::redis::RedisBackendBuilder::min_replicas) counts the replicas of the node that
//!   has the key.
//! - Names with the same hash tag, such as `{user}:1` and `{user}:2`, share a slot. Their renewals share commands, and
//!   a failure of their node affects all of them.
