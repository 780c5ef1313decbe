//! Redis: for developers and operators configuring the Redis backend.
//!
//! [`LockManager::connect`](crate::LockManager::connect) with a URL is enough to begin with. Two builders have settings:
//!
//! | settings | builder | created by |
//! |---|---|---|
//! | of locks: the wait, the watchdog timeout, the bounds on waiters | [`LockManagerBuilder`](crate::LockManagerBuilder) | [`LockManagerBuilder::new`](crate::LockManagerBuilder::new)`()`, which ends in [`connect`](crate::LockManagerBuilder::connect)`(url).await` or [`connect_lazy`](crate::LockManagerBuilder::connect_lazy)`(url)`; or [`LockManager::builder`](crate::LockManager::builder)`(backend)`, which ends in `build()` |
//! | of the servers: all [below](#settings) | [`RedisBackendBuilder`](crate::backend::redis::RedisBackendBuilder) | [`RedisBackend::builder`](crate::RedisBackend::builder)`(url)` |
//!
//! `connect(url)` connects a backend with the default settings of servers. A program that changes one of these connects
//! the backend, and passes it to `LockManager::builder`:
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_lock::{LockManager, RedisBackend};
//!
//! async fn locks() -> Result<LockManager, Box<dyn std::error::Error>> {
//!     let backend = RedisBackend::builder("redis://127.0.0.1:6379").prefix("shop:").connect().await?;
//!     for warning in backend.warnings() {
//!         eprintln!("{warning}");
//!     }
//!     Ok(LockManager::builder(backend).wait(Duration::from_secs(2)).build()?)
//! }
//! ```
//!
//! # URLs
//!
//! The URL selects the topology. The rest of the program stays the same.
//!
//! | servers | URL |
//! |---|---|
//! | [one server](super::one_server), or [one endpoint](super::cluster#one-endpoint-for-several-servers) for several | `redis://[user:password@]host[:port][/db]` |
//! | one server on a Unix socket | `redis+unix:///path/to/socket?db=…&user=…&pass=…` |
//! | [Sentinel](super::sentinel) | `redis+sentinel://[user:password@]s1:26379,s2:26379,s3:26379/mymaster[/db]` |
//! | [Cluster](super::cluster) | `redis+cluster://[user:password@]n1:6379,n2:6379` |
//! | the same over TLS, with the feature `redis-tls` | `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…` |
//! | [a quorum](super::quorum) of independent servers | [`Quorum`](crate::Quorum) over three or five backends |
//!
//! - A user needs a password. Percent-encode characters with a meaning in URLs.
//! - Behind sentinels, the login in the URL is for the primary. [`sentinel_auth`] sets the login for the sentinels.
//! - `?protocol=2` after the URL of one server is for proxies without RESP3. Waiters then poll.
//!
//! # Versions
//!
//! The backend requires Redis 6.2 or newer, or Valkey. `make test-servers` runs the tests against several versions:
//!
//! | tests | Redis | Valkey |
//! |---|---|---|
//! | `tests/redis` | 6.2.14, 7.0.15, 8.2.3 | 8.1.8, 9.1.2 |
//! | faults | 6.2.14, 7.0.15 | 9.1.2 |
//! | TLS | 7.0.15 | none: these servers were built without TLS |
//!
//! Redis 6.2 has no sharded messages. Its ACL rules omit `+spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub`,
//! and a cluster uses plain messages.
//!
//! # Servers and proxies
//!
//! The URL of one server may lead to a proxy, or to a server of another project. `make test-servers` runs the conformance
//! suite against these as well, from pinned packages:
//!
//! | server or proxy | version | outcome |
//! |---|---|---|
//! | HAProxy, TCP | 2.6.12 | works. It ends idle connections at its timeouts. They are replaced, and no lock is lost |
//! | stunnel | 5.68 | works, with [`ca_certificate`]. Refused without it: `UnknownIssuer` |
//! | Envoy, `redis_proxy` with one upstream | 1.40.0 | works with polling, by `?protocol=2`. Refused without it, and the error names it |
//! | Envoy, `redis_proxy` with several upstreams | 1.40.0 | refused: `address leads to several servers`. A key could have two owners |
//! | fakeredis, `TcpFakeServer` | 2.41.0 | for tests: works with polling, by `?protocol=2`. Refused without it: `unexpected reply from the server: an array`, since its subscriptions reply in RESP2 |
//! | miniredis | 2.40.0 | for tests: works if the test advances its clock by `FastForward`. Otherwise no lease expires |
//! | jedis-mock | 1.1.18 | refused: `Unknown command called from script`. It has no RESP3, and no `PUBSUB` in scripts |
//! | twemproxy | 0.5.0 | refused: `server closed the connection`. It forwards neither `HELLO` nor `CLIENT SETINFO`, and the error names both |
//!
//! A proxy that mirrors commands to the same server, as Envoy can by `request_mirror_policy`, is unsafe and is not
//! detected: the second copy of a command can end the lease that the first one kept, and the key has two owners.
//!
//! # Settings
//!
//! | to | set | default |
//! |---|---|---|
//! | separate services, or share names with Java | [`prefix`], or `?prefix=` in the URL | `lock:` |
//! | grant a lock only when replicas have it | [`min_replicas`] | off; costs a round trip |
//! | grant no lock for a while after a restart or a loss of data | [`quarantine`] | off; costs a pause after each restart, and the server about 10 µs per attempt |
//! | start while Redis is unavailable | [`connect_lazy`] instead of [`connect`]; it returns at once, without an await | `connect` fails. A Cluster has `connect` only, for which one node must reply |
//! | change a password or token at run time (AWS IAM, Microsoft Entra) | [`credentials`] | the login of the URL |
//! | reach nodes behind Docker, NAT or an SSH tunnel | [`address_map`] | the addresses that cluster nodes and sentinels report |
//! | open more connections | [`connections`] | 1 |
//! | limit the time to open a connection, the look-up of the host name included | [`connect_timeout`] | 2 s |
//! | limit the time for a reply | [`response_timeout`] | 500 ms |
//! | publish for older Redisson clients in a Cluster | [`publish`] | [`Publish::Auto`](crate::backend::redis::Publish::Auto) |
//! | continue the tokens of Redisson's `getFencedLock` | [`redisson_fencing_tokens`] | off |
//!
//! An acquire ends at its own wait even if the timeouts above are longer. A single attempt,
//! [`no_wait`](crate::manager::Acquire::no_wait), ends within one response timeout. A command outside an acquire, such as
//! `inspect`, can take twice the response timeout, because it is sent again if its connection ends.
//!
//! An acquire is sent again as well, and the network or a proxy may deliver the first copy after the lock was released.
//! The copy then takes the free lock for a lease that no process has. It blocks the key for one lease, or for 1.5 s if it
//! entered the queue. The key still has at most one owner.
//!
//! # TLS
//!
//! With `rediss://`, servers are verified against the authorities that Mozilla trusts.
//!
//! - [`ca_certificate`] sets other authorities in their place.
//! - [`client_certificate`] sets the certificate for servers that require one.
//! - [`tls_server_name`] is for servers at IP addresses whose certificates contain a host name.
//!
//! The cryptography is that of ring, unless the program installs another default provider of rustls before it connects.
//!
//! # Connections from a pool
//!
//! [`RedisBackend::from_pool`](crate::RedisBackend::from_pool) takes its connections from a
//! [deadpool-redis](https://docs.rs/deadpool-redis) pool and keeps them. A pool does not report the address of its
//! server. Set it with [`notify`]. Without it, waiters poll at intervals of up to 100 ms: see
//! [`order`](super::order#processes-without-a-subscription).
//!
//! # Servers
//!
//! - *Eviction.* Set `maxmemory-policy noeviction`. Other policies evict held locks when memory is short. The backend
//!   warns when it connects, if its user may read the setting.
//! - *Persistence.* A lock is as durable as the data in Redis. With `appendonly yes` and `appendfsync always`, a grant
//!   is on disk before the reply. With `everysec`, a crash may lose the last second. Without either, a restart
//!   frees all locks. The page [`one_server`](super::one_server) describes the consequences.
//!
//! # Permissions
//!
//! A user with the least privileges for locks under the prefix `lock:`:
//!
//! ```text
//! ACL SETUSER locker reset on >SECRET ~lock:* resetchannels &redisson_lock__channel:*
//!     +ping +time +eval +evalsha +incrby +del +exists +hset +hdel +hlen +hexists +pttl +pexpire
//!     +zadd +zrem +zscore +zcount +zrange +zrevrangebyscore
//!     +publish +subscribe +unsubscribe +pubsub|numsub
//! ```
//!
//! Some uses need more:
//!
//! - a cluster, at each of its nodes: `+cluster|slots +asking +spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub`,
//! - `min_replicas`: `+wait +unwatch`,
//! - shared locks and permits: `+hget +hgetall`,
//! - a database in the URL: `+select`,
//! - a `quarantine`: `+set +info`,
//! - the nodes of a `Quorum`: `+get +set`, and `+info` to find a server that two of them lead to,
//! - `force_release`, and the holder in `inspect`: `+hgetall`,
//! - the warning of an eviction policy: `+info`.
//!
//! The backend tries its scripts when it connects, under names that begin with `self-test:` after the prefix. It
//! fails if a permission is missing. Some permissions are not tried, and are first needed by the command itself:
//! those of shared locks, those of the nodes of a `Quorum`, and `+hgetall`. A connect under exactly this user leaves
//! denials of `info` and `hgetall` in `ACL LOG`, which are harmless. Without the permissions for sorted sets (`+zadd` to
//! `+zrevrangebyscore`), the backend warns, and the waiters of several processes have no order.
//!
//! [`address_map`]: crate::backend::redis::RedisBackendBuilder::address_map
//! [`ca_certificate`]: crate::backend::redis::RedisBackendBuilder::ca_certificate
//! [`client_certificate`]: crate::backend::redis::RedisBackendBuilder::client_certificate
//! [`connect`]: crate::backend::redis::RedisBackendBuilder::connect
//! [`connect_lazy`]: crate::backend::redis::RedisBackendBuilder::connect_lazy
//! [`connect_timeout`]: crate::backend::redis::RedisBackendBuilder::connect_timeout
//! [`connections`]: crate::backend::redis::RedisBackendBuilder::connections
//! [`credentials`]: crate::backend::redis::RedisBackendBuilder::credentials
//! [`min_replicas`]: crate::backend::redis::RedisBackendBuilder::min_replicas
//! [`notify`]: crate::backend::redis::RedisBackendBuilder::notify
//! [`prefix`]: crate::backend::redis::RedisBackendBuilder::prefix
//! [`publish`]: crate::backend::redis::RedisBackendBuilder::publish
//! [`quarantine`]: crate::backend::redis::RedisBackendBuilder::quarantine
//! [`redisson_fencing_tokens`]: crate::backend::redis::RedisBackendBuilder::redisson_fencing_tokens
//! [`response_timeout`]: crate::backend::redis::RedisBackendBuilder::response_timeout
//! [`sentinel_auth`]: crate::backend::redis::RedisBackendBuilder::sentinel_auth
//! [`tls_server_name`]: crate::backend::redis::RedisBackendBuilder::tls_server_name
