//! The contract, on Redis.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;

use super::RedisBackendBuilder;
use crate::LockKey;
use crate::backend::redis::command::{self as command, spread_quarantine};
use crate::backend::redis::command::{Cause, KeyRoute, Names, Scripts};
use crate::backend::redis::connection::Network;
use crate::backend::redis::topology::{Route, Sentinels, Topology};
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Extended, Fence,
    ForceReleased, Hints, Holder, KeepRequest, Node, Release, Released, ReleasedOrKept, Renewal,
    Renewed,
};

/// Leases in Redis 6 or newer, shared with Redisson's `getLock`.
///
/// A cheap handle: clones share the connections, which close with the last clone.
///
/// # Answers and time
///
/// A command waits up to the connect timeout for a connection, then up to the response timeout for
/// its answer; once more where the connection breaks under it. An acquire without an answer is
/// given back by itself, on the connection that may still deliver it.
///
/// # What it relies on
///
/// A lock is as safe as what Redis keeps: with `appendonly` off or `everysec` a crash, and with
/// asynchronous replication a failover, may lose the last writes, and a lease in them. The fencing
/// token is for those cases; [`min_replicas`](RedisBackendBuilder::min_replicas) makes the second
/// one rare.
///
/// # Permissions
///
/// A user that can lock under the prefix `lock:` and nothing else:
///
/// ```text
/// ACL SETUSER locker reset on >SECRET ~lock:* resetchannels &redisson_lock__channel:*
///     +ping +time +eval +evalsha +incrby +del +exists +hset +hdel +hlen +hexists +pttl +pexpire
///     +publish +subscribe +unsubscribe +pubsub|numsub
/// ```
///
/// In a cluster, at each of its nodes, also `+cluster|slots +asking +spublish +ssubscribe
/// +sunsubscribe +pubsub|shardnumsub`; with [`min_replicas`](RedisBackendBuilder::min_replicas) also
/// `+wait +unwatch`; with a [`quarantine`](RedisBackendBuilder::quarantine) also `+set`, and at the
/// nodes of a [`Quorum`](crate::Quorum) `+get +set`. With `+hgetall`, [`inspect`](Backend::inspect) tells who holds
/// a lock and not only that it is held; with `+info`, [`warnings`](Self::warnings) tell of eviction. A
/// database other than 0 takes `+select`.
///
/// ```no_run
/// # async fn example() -> Result<(), tower_lock::ConnectError> {
/// use tower_lock::backend::redis::RedisBackend;
///
/// let backend = RedisBackend::builder("redis://127.0.0.1:6379")
///     .prefix("shop:")
///     .connect()
///     .await?;
/// for warning in backend.warnings() {
///     eprintln!("{warning}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisBackend {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) names: Names,
    pub(crate) scripts: Scripts,
    pub(crate) topology: Topology,
    /// Those who say which server it is.
    pub(crate) sentinels: Option<Arc<Sentinels>>,
    pub(crate) network: Arc<Network>,
    /// Acquires that are wanted at the same moment go in one call: not in a cluster, where few share
    /// a slot, nor where each has to be acknowledged or may be in a quarantine.
    pub(crate) batches_acquires: bool,
    pub(crate) address: String,
    pub(crate) warnings: Vec<String>,
}

impl RedisBackend {
    /// A backend at `url`:
    ///
    /// - `redis://[user][:password@]host[:port][/database]`: one server,
    /// - `redis+unix:///path/to/socket[?db=…][&user=…][&pass=…]`: the same, on this machine,
    /// - `redis+sentinel://[user][:password@]host[:port],…/service[/database]`: the primary of a
    ///   service; the hosts are sentinels, at port 26379 unless another is given, user and password
    ///   those of the primary,
    /// - `redis+cluster://[user][:password@]host[:port],…`: a cluster; the hosts are some of its
    ///   nodes,
    /// - `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…`: through TLS, with the feature
    ///   `redis-tls`.
    ///
    /// What is wrong with it is told by [`RedisBackendBuilder::connect`].
    pub fn builder(url: impl Into<String>) -> RedisBackendBuilder {
        RedisBackendBuilder::from_url(url.into())
    }

    /// A backend that takes its connections out of a pool of your own.
    ///
    /// They are taken for good, so the pool's size is free for others again. All of the builder's
    /// settings apply; name a server to [subscribe](RedisBackendBuilder::notify) to, since a pool
    /// does not tell its own. TCP settings are the pool's.
    pub fn from_pool(pool: Pool) -> RedisBackendBuilder {
        RedisBackendBuilder::from_pool(pool)
    }

    pub(crate) fn new(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// What looked unsafe about a server when the backend connected, in words: an eviction policy
    /// that may drop locks, a replica, memory that is full. Also sent to `tracing`, with that
    /// feature.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }
}

impl Inner {
    pub(crate) fn route(&self, key: &LockKey) -> Result<Route, BackendError> {
        match &self.topology {
            Topology::Single(node) => Ok(Route::alone(node.connection(key))),
            Topology::Cluster(cluster) => cluster.route(key, self.names.slot(key)),
        }
    }

    pub(crate) fn at<'a>(&'a self, route: &'a Route, key: &'a LockKey) -> KeyRoute<'a> {
        KeyRoute {
            route,
            names: &self.names,
            key,
        }
    }

    /// How many subscribers of a key's channel are our own; `None` where others cannot be counted.
    fn own_subscribers(&self, key: &LockKey) -> Option<u8> {
        let channel = self.names.channel(key).to_text();
        match &self.topology {
            Topology::Single(node) => node.notifier.own_subscribers(&channel),
            Topology::Cluster(cluster) => cluster.own_subscribers(&channel),
        }
    }

    /// Sees to it that those who listen for a recovery also hear of a new primary.
    fn look_out(&self) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.look_out();
        }
    }
}

/// Dropping the future of any method but `try_acquire` leaves nothing behind: a command that was
/// sent takes effect or does not, and all of them may be repeated.
impl Backend for RedisBackend {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let inner = &*self.inner;
        let AcquireRequest { key, lease, ttl } = request;
        if key.as_str().is_empty() {
            // The engine refuses it before; an empty name would be a lock that everybody shares.
            return Err(BackendError::refused(
                BackendErrorKind::Conflict,
                Cause::EmptyKey,
            ));
        }
        let route = inner.route(key)?;
        if inner.batches_acquires {
            return command::acquire(&self.inner, route.connection(), request).await;
        }
        let at = inner.at(&route, key);
        let outcome = inner.scripts.acquire(at, *lease, *ttl).await;
        if let Err(refusal) = &outcome {
            spread_quarantine(&self.inner, key, refusal);
        }
        outcome
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        let inner = &*self.inner;
        let call = |route: Route, batch: Vec<_>| async move {
            inner.scripts.renew_all(&route, &inner.names, &batch).await
        };
        inner.in_batches(renewals, |it| &it.key, call).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let inner = &*self.inner;
        let call = |route: Route, batch: Vec<_>| async move {
            inner
                .scripts
                .release_all(&route, &inner.names, &batch)
                .await
        };
        inner.in_batches(leases, |it| &it.key, call).await
    }

    async fn release_or_keep(&self, request: &KeepRequest) -> Result<ReleasedOrKept, BackendError> {
        let inner = &*self.inner;
        let KeepRequest { key, lease, ttl } = request;
        let (route, own) = (inner.route(key)?, inner.own_subscribers(key));
        let at = inner.at(&route, key);
        Ok(
            match inner
                .scripts
                .release_or_keep(at, *lease, *ttl, own, true)
                .await?
            {
                Extended::Kept { counter } => ReleasedOrKept::kept(counter),
                Extended::Wanted { watchers } => ReleasedOrKept::released(watchers),
                Extended::NotHeld => ReleasedOrKept::NotHeld,
            },
        )
    }

    async fn extend(&self, request: &KeepRequest) -> Result<Extended, BackendError> {
        let inner = &*self.inner;
        let KeepRequest { key, lease, ttl } = request;
        let Some(own) = inner.own_subscribers(key) else {
            return Ok(Extended::wanted(0));
        };
        let route = inner.route(key)?;
        let at = inner.at(&route, key);
        inner
            .scripts
            .release_or_keep(at, *lease, *ttl, Some(own), false)
            .await
    }

    fn watch(&self, key: &LockKey) -> Hints {
        let inner = &*self.inner;
        let channel = inner.names.channel(key).to_text();
        let (sender, hints) = Hints::channel();
        inner.network.recovery.listen(sender.clone());
        inner.look_out();
        match &inner.topology {
            Topology::Single(node) => node.notifier.watch(channel, vec![sender]),
            Topology::Cluster(cluster) => cluster.watch(channel, vec![sender]),
        }
        hints
    }

    fn recoveries(&self) -> Hints {
        let hints = self.inner.network.recovery.hints();
        self.inner.look_out();
        hints
    }

    fn group(&self, key: &LockKey) -> u64 {
        match &self.inner.topology {
            Topology::Single(node) => node.connection(key).id(),
            // Where there is no route for it there is nothing to wait for, either.
            Topology::Cluster(_) => self
                .inner
                .route(key)
                .map_or(0, |route| route.connection_id()),
        }
    }

    fn tokens_per_counter(&self) -> u32 {
        // Redisson takes the next number for its own.
        if self.inner.names.of_redisson { 1 } else { 256 }
    }

    /// A server, a primary and each node of a cluster have the same timeout. An acquire also waits for the
    /// acknowledgments of its replicas.
    fn response_timeout(&self) -> Duration {
        let network = &self.inner.network;
        let acknowledged = network.min_replicas.map(|asked| asked.timeout);
        network.response_timeout + acknowledged.unwrap_or_default()
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let inner = &*self.inner;
        let route = inner.route(key)?;
        inner.scripts.inspect(inner.at(&route, key)).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        let inner = &*self.inner;
        let route = inner.route(key)?;
        inner.scripts.force_release(inner.at(&route, key)).await
    }
}

impl Node for RedisBackend {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        let inner = &*self.inner;
        let AcquireRequest { key, lease, ttl } = request;
        let route = inner.route(key)?;
        let at = inner.at(&route, key);
        let outcome = inner.scripts.vote(at, *lease, *ttl, fence).await;
        if let Err(refusal) = &outcome {
            spread_quarantine(&self.inner, key, refusal);
        }
        outcome
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("address", &self.inner.address)
            .field("prefix", &self.inner.names.prefix())
            .finish_non_exhaustive()
    }
}
