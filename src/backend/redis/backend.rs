//! The contract, on Redis.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use futures_util::future::join_all;

use super::RedisBackendBuilder;
use super::connect::Connector;
use super::fault::Trouble;
use super::names::Names;
use super::notify::Notifier;
use super::script::{self, MAX_BATCH};
use super::shard::Shard;
use crate::LockKey;
use crate::backend::{
    Acquired, Backend, BackendError, BackendErrorKind, Fence, ForceReleased, Hints, Holder,
    LeaseId, Node, Passed, Released, Renewal, Renewed,
};

/// Leases in one Redis 5 or newer, shared with Redisson's `getLock`.
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
/// token is for those cases.
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

struct Inner {
    names: Names,
    shards: Vec<Arc<Shard>>,
    notifier: Notifier,
    connector: Arc<Connector>,
    warnings: Vec<String>,
}

impl RedisBackend {
    /// A backend on the server at `url`:
    ///
    /// - `redis://[user][:password@]host[:port][/database]`,
    /// - `rediss://…` with the feature `redis-tls`,
    /// - `redis+unix:///path/to/socket[?db=…][&user=…][&pass=…]`.
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

    pub(super) fn new(
        names: Names,
        shards: Vec<Arc<Shard>>,
        notifier: Notifier,
        connector: Arc<Connector>,
        warnings: Vec<String>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                names,
                shards,
                notifier,
                connector,
                warnings,
            }),
        }
    }

    /// What looked unsafe about the server when the backend connected, in words: an eviction policy
    /// that may drop locks, a replica, memory that is full. Also sent to `tracing`, with that
    /// feature.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }
}

impl Inner {
    fn shard(&self, key: &LockKey) -> &Arc<Shard> {
        &self.shards[self.shard_index(key)]
    }

    fn shard_index(&self, key: &LockKey) -> usize {
        let shards = self.shards.len() as u64;
        usize::try_from(key.hash_code() % shards).unwrap_or(0)
    }

    /// Sorts items by connection, calls for up to [`MAX_BATCH`] at once, all calls side by side,
    /// and puts the answers into the order asked.
    async fn in_batches<'a, T, O, F>(
        &'a self,
        items: &'a [T],
        key: fn(&T) -> &LockKey,
        call: impl Fn(&'a Arc<Shard>, Vec<&'a T>) -> F,
    ) -> Vec<Result<O, BackendError>>
    where
        F: Future<Output = Vec<Result<O, BackendError>>>,
    {
        if let [only] = items {
            return call(self.shard(key(only)), vec![only]).await;
        }
        let mut order: Vec<_> = (0..items.len())
            .map(|index| (self.shard_index(key(&items[index])), index))
            .collect();
        order.sort_unstable();
        let calls = order
            .chunk_by(|one, other| one.0 == other.0)
            .flat_map(|of_shard| of_shard.chunks(MAX_BATCH))
            .map(|batch| {
                let of_batch = batch.iter().map(|&(_, index)| &items[index]).collect();
                call(&self.shards[batch[0].0], of_batch)
            });
        let answers = join_all(calls).await.into_iter().flatten();
        let mut answers: Vec<_> = order.iter().map(|&(_, index)| index).zip(answers).collect();
        answers.sort_unstable_by_key(|&(index, _)| index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

/// Dropping the future of any method but `try_acquire` leaves nothing behind: a command that was
/// sent takes effect or does not, and all of them may be repeated.
impl Backend for RedisBackend {
    async fn try_acquire(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        let inner = &*self.inner;
        if key.as_str().is_empty() {
            // The engine refuses it before; an empty name would be a lock that everybody shares.
            return Err(BackendError::refused(
                BackendErrorKind::Conflict,
                Trouble::EmptyKey,
            ));
        }
        script::acquire(inner.shard(key), &inner.names, key, lease, ttl).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        let inner = &*self.inner;
        inner
            .in_batches(
                renewals,
                |renewal| &renewal.key,
                |shard, batch| async move { script::renew(shard, &inner.names, &batch).await },
            )
            .await
    }

    async fn release(&self, leases: &[(LockKey, LeaseId)]) -> Vec<Result<Released, BackendError>> {
        let inner = &*self.inner;
        inner
            .in_batches(
                leases,
                |(key, _)| key,
                |shard, batch| async move { script::release(shard, &inner.names, &batch).await },
            )
            .await
    }

    async fn pass(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Passed, BackendError> {
        let inner = &*self.inner;
        let channel = inner.names.channel(key).to_text();
        let own = inner.notifier.own_subscribers(&channel);
        script::pass(inner.shard(key), &inner.names, key, lease, ttl, own).await
    }

    fn watch(&self, key: &LockKey) -> Hints {
        let inner = &*self.inner;
        inner.notifier.watch(inner.names.channel(key).to_text())
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let inner = &*self.inner;
        script::inspect(inner.shard(key), &inner.names, key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        let inner = &*self.inner;
        script::force_release(inner.shard(key), &inner.names, key).await
    }
}

impl Node for RedisBackend {
    async fn vote(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
        fence: Fence,
    ) -> Result<Acquired, BackendError> {
        let inner = &*self.inner;
        script::vote(inner.shard(key), &inner.names, key, lease, ttl, fence).await
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("address", &self.inner.connector.address)
            .field("prefix", &self.inner.names.prefix())
            .field("connections", &self.inner.shards.len())
            .finish_non_exhaustive()
    }
}
