//! The [`Backend`] on Redis.

use std::fmt;
use std::sync::Arc;

use deadpool_redis::Pool;
use futures_util::future::join_all;
use uuid::Uuid;

use super::RedisBackendBuilder;
use super::command::{Cause, spread_quarantine};
use super::inner::Inner;
use super::notify::Watcher;
use super::topology::{Route, in_batches};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Capabilities, Contended,
    Downgraded, Fence, ForceReleased, Hints, Holder, KeepRequest, Mode, Node, Release, Released,
    ReleasedOrKept, Renewal, Renewed,
};

/// Leases in Redis 6.2 or newer, shared with Redisson's `getLock`.
///
/// A cheap handle: clones share the connections, which close with the last clone. Connections run on a
/// thread of this crate or in a multi-thread runtime, so any [runtime](crate::guide::runtimes) can use them.
///
/// # Timeouts
///
/// A command waits for a connection within the connect timeout, and for its reply within the response
/// timeout. If the connection ends, the command is sent once more. If the connection of a holder or a waiter
/// ends between commands, it is replaced at once, and all leases are renewed. An acquire without a reply is
/// released in the background, over the connection that may still deliver it.
///
/// # Guarantees
///
/// A lock is as durable as the data in Redis. A crash may lose the last writes, and a lease with them, if
/// `appendonly` is off or `everysec`. So may a failover, because replication is asynchronous. The fencing
/// token protects against both; [`min_replicas`](RedisBackendBuilder::min_replicas) makes the second one
/// rare.
///
/// # Permissions
///
/// The least privileges of a user for locks under the prefix `lock:`:
///
/// ```text
/// ACL SETUSER locker reset on >SECRET ~lock:* resetchannels &redisson_lock__channel:*
///     +ping +time +eval +evalsha +incrby +del +exists +hset +hdel +hlen +hexists +pttl +pexpire
///     +zadd +zrem +zscore +zcount +zrange +zrevrangebyscore
///     +publish +subscribe +unsubscribe +pubsub|numsub
/// ```
///
/// The sorted sets are the queues of waiters. Without the permissions for them, the backend connects with a
/// [warning](Self::warnings). Its waiters then compete for a released lock, as clients outside the queue.
///
/// In a cluster, at each of its nodes, also `+cluster|slots +asking +spublish +ssubscribe
/// +sunsubscribe +pubsub|shardnumsub`; with [`min_replicas`](RedisBackendBuilder::min_replicas) also
/// `+wait +unwatch`; for shared locks and permits `+hget +hgetall`; with a
/// [`quarantine`](RedisBackendBuilder::quarantine) also `+set +info`, and at the nodes of a [`Quorum`](crate::Quorum) `+get +set`. With `+hgetall`, [`inspect`](Backend::inspect) also returns
/// the holder of a held lock. [`force_release`](Backend::force_release) requires `+hgetall` to compare the
/// holder. With `+info`, [`warnings`](Self::warnings) report an eviction policy. A database
/// other than 0 requires `+select`.
///
/// ```no_run
/// # async fn example() -> Result<(), tower_lock::ConnectError> {
/// use tower_lock::RedisBackend;
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
    pub(super) inner: Arc<Inner>,
}

impl RedisBackend {
    /// Creates a builder for a backend at `url`:
    ///
    /// - `redis://[user][:password@]host[:port][/database]`: one server, or one
    ///   [endpoint for several servers](crate::guide::cluster#one-endpoint-for-several-servers),
    /// - `redis+unix:///path/to/socket[?db=…][&user=…][&pass=…]`: one server on this machine,
    /// - `redis+sentinel://[user][:password@]host[:port],…/service[/database]`: the primary of a service.
    ///   The hosts are sentinels, with the default port 26379. User and password are for the primary.
    /// - `redis+cluster://[user][:password@]host[:port],…`: a cluster. The hosts are some of its nodes.
    /// - `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…`: the same over TLS, with the feature
    ///   `redis-tls`.
    ///
    /// The URL of one server may end in `?protocol=2`, for a server or a proxy without RESP3. The backend then has
    /// no subscription, unless [`notify`](RedisBackendBuilder::notify) names a server for it. Unknown parameters
    /// are errors, and so is a user without a password.
    ///
    /// [`RedisBackendBuilder::connect`] reports an invalid URL.
    pub fn builder(url: impl Into<String>) -> RedisBackendBuilder {
        RedisBackendBuilder::from_url(url.into())
    }

    /// Creates a builder for a backend that takes its connections from the program's pool.
    ///
    /// They never return, so the pool has room for others again. All settings of the builder apply, but
    /// the pool determines the TCP settings. The server of a pool is unknown: set
    /// [`notify`](RedisBackendBuilder::notify) to subscribe to releases. The end of an idle connection is
    /// noticed at its next command, as it is for a URL with `?protocol=2`.
    ///
    /// Each connection first selects the database of the pool's configuration, because the program may have
    /// selected another one. A hook of the pool cannot change the database of the locks.
    ///
    /// If a connection leads to a server that is no primary, as after a failover behind the pool's address, or none
    /// can be taken within the connect timeout, the backend closes the older idle connections of the pool, which may
    /// lead to the same server. Connections that the program uses stay, and so do those opened since.
    pub fn from_pool(pool: Pool) -> RedisBackendBuilder {
        RedisBackendBuilder::from_pool(pool)
    }

    /// Returns the risks of the servers at the time of the connect: an eviction policy that may drop locks, a
    /// replica, full memory.
    ///
    /// With the feature `tracing`, they are also logged. After [`connect_lazy`](RedisBackendBuilder::connect_lazy), there
    /// are none until the servers were tried.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        self.inner.warnings.get().map_or(&[], Vec::as_slice)
    }
}

/// Returns the error of an empty key, which the engine rejects as well. An empty name would be one lock for all
/// keys.
fn empty_key() -> BackendError {
    BackendError::refused(BackendErrorKind::Conflict, Cause::EmptyKey)
}

/// The futures panic outside a Tokio runtime with timers, in which the engine polls them.
///
/// If a future of any method but `try_acquire` and `contend` is dropped, nothing remains: a command that was sent takes
/// effect or does not. All of them are repeatable, or affect only the lease that they name.
impl Backend for RedisBackend {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let inner = &*self.inner;
        let AcquireRequest { key, mode, .. } = request;
        if key.as_str().is_empty() {
            return Err(empty_key());
        }
        let batches = match mode {
            Mode::Exclusive => &inner.acquire_batches,
            Mode::Shared | Mode::Permit => &inner.share_batches,
        };
        let batch = inner.topology.shared_connection(key);
        if let Some(batch) = batch.and_then(|index| batches.get(index)) {
            return batch.acquire(request).await;
        }
        let route = inner.topology.route(key)?;
        inner.context.saw_lease(request.ttl);
        let at = inner.calls.at(&route, key);
        let outcome = inner.calls.acquire(at, request).await;
        if let Ok(Acquired::Busy { ttl }) = outcome {
            inner.context.saw_lease(ttl);
        }
        spread_quarantine(&inner.calls, &*inner.topology, key, outcome.as_ref().err());
        outcome
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        let inner = &*self.inner;
        let key = &request.key;
        if key.as_str().is_empty() {
            return Err(empty_key());
        }
        if !inner.calls.are_queues_allowed() {
            return Ok(Contended::of(self.try_acquire(request).await?));
        }
        let route = inner.topology.route(key)?;
        inner.context.saw_lease(request.ttl);
        let at = inner.calls.at(&route, key);
        let mut request = request.clone();
        if request.listens {
            let channel = inner.calls.names.channel(key).to_text();
            request.listens = route.node().notifier.is_subscribed(&channel);
        }
        let outcome = inner.calls.contend(at, &request).await;
        if let Ok(Contended::Waiting { ttl, .. }) = outcome {
            inner.context.saw_lease(ttl);
        }
        spread_quarantine(&inner.calls, &*inner.topology, key, outcome.as_ref().err());
        outcome
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let inner = &*self.inner;
        let call = |route: Route, batch: Vec<_>| async move {
            inner.calls.leave_all(&route, &batch).await
        };
        in_batches(&*inner.topology, leases, |it| &it.key, |_| true, call).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        let inner = &*self.inner;
        let ttls = renewals.iter().map(|it| it.ttl);
        ttls.for_each(|ttl| inner.context.saw_lease(ttl));
        let call = |route: Route, batch: Vec<_>| async move {
            inner.calls.renew_all(&route, &batch).await
        };
        let kind = |it: &Renewal| it.mode == Mode::Exclusive;
        in_batches(&*inner.topology, renewals, |it| &it.key, kind, call).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let inner = &*self.inner;
        let call = |route: Route, batch: Vec<_>| async move {
            inner.calls.release_all(&route, &batch).await
        };
        in_batches(&*inner.topology, leases, |it| &it.key, |_| true, call).await
    }

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        let inner = &*self.inner;
        let ttls = leases.iter().map(|it| it.ttl);
        ttls.for_each(|ttl| inner.context.saw_lease(ttl));
        let call = |route: Route, batch: Vec<_>| async move {
            inner.calls.release_or_keep(&route, &batch).await
        };
        // Each of Redisson's counters belongs to one key.
        let together = match inner.calls.names.of_redisson {
            true => 1,
            false => leases.len().max(1),
        };
        let parts = leases.chunks(together);
        let parts =
            parts.map(|part| in_batches(&*inner.topology, part, |it| &it.key, |_| true, call));
        join_all(parts).await.into_iter().flatten().collect()
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        let inner = &*self.inner;
        let route = inner.topology.route(&lease.key)?;
        let at = inner.calls.at(&route, &lease.key);
        inner.calls.downgrade(at, lease).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        let inner = &*self.inner;
        let channel = inner.calls.names.channel(key).to_text();
        let (sender, hints) = Hints::channel();
        inner.context.recovery.subscribe(sender.clone());
        inner.topology.look_out();
        let manager = inner.calls.are_queues_allowed().then_some(manager);
        inner.topology.watch(channel, Watcher { manager, sender });
        hints
    }

    fn recoveries(&self) -> Hints {
        let hints = self.inner.context.recovery.hints_of_holder();
        self.inner.topology.look_out();
        hints
    }

    fn capabilities(&self) -> Capabilities {
        let inner = &*self.inner;
        // All nodes have the same timeout. An acquire also waits for the acknowledgments of its replicas.
        let acknowledged = inner.min_replicas.map(|asked| asked.timeout);
        let response_timeout = inner.context.response_timeout + acknowledged.unwrap_or_default();
        let mut capabilities = Capabilities::EXCLUSIVE
            .with_shared()
            .with_permits()
            .with_response_timeout(response_timeout);
        let is_careful = inner.min_replicas.is_some() || inner.calls.quarantine_millis().is_some();
        capabilities.may_be_kept = !(is_careful || inner.calls.names.of_redisson);
        match inner.calls.names.of_redisson {
            // Redisson uses the next number for its next grant.
            true => capabilities.with_tokens_per_counter(1),
            false => capabilities,
        }
    }

    fn group(&self, key: &LockKey) -> u64 {
        // Without a connection there is no other command to wait for.
        let route = self.inner.topology.route(key);
        route.map_or(0, |route| route.connection().id())
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let inner = &*self.inner;
        let route = inner.topology.route(key)?;
        inner.calls.inspect(inner.calls.at(&route, key)).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        let inner = &*self.inner;
        let route = inner.topology.route(key)?;
        let at = inner.calls.at(&route, key);
        match holder {
            Some(holder) => inner.calls.release_by_force(at, holder, true).await,
            None => inner.calls.force_release(at).await,
        }
    }
}

impl Node for RedisBackend {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        let inner = &*self.inner;
        let key = &request.key;
        let route = inner.topology.route(key)?.without_replicas();
        let at = inner.calls.at(&route, key);
        inner.context.saw_lease(request.ttl);
        let outcome = inner.calls.vote(at, request, fence).await;
        spread_quarantine(&inner.calls, &*inner.topology, key, outcome.as_ref().err());
        outcome
    }

    /// Derived from the server's run id, which the dial of a connection reads. Unknown before the first one, from
    /// Sentinel or a cluster, and for a user that may not call `INFO`.
    fn server_id(&self) -> Option<u64> {
        self.inner.topology.server_id()
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("address", &self.inner.address)
            .field("prefix", &self.inner.calls.names.prefix())
            .finish_non_exhaustive()
    }
}
