//! Clients of a primary behind a virtual address.

use std::fmt::Debug;
use std::num::NonZeroUsize;

use deadpool_redis::{Manager, Pool, Runtime};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{LockGuard, LockManager, RedisBackend};

use crate::support::engine::{SECOND, by, manager_from};
use crate::support::service::Service;

/// For locks that are lost unless they are renewed within this time.
pub(super) const LEASE: std::time::Duration = std::time::Duration::from_secs(9);

/// The limit for a grant after the endpoint leads to the new primary.
pub(super) const NEXT_GRANT: std::time::Duration = std::time::Duration::from_secs(2);

/// Returns a pool of the program with 64 idle connections.
pub(super) async fn pool(service: &Service) -> Pool {
    let manager = Manager::new(service.url()).unwrap();
    let pool = Pool::builder(manager)
        .max_size(200)
        .runtime(Runtime::Tokio1);
    let pool = pool.build().unwrap();
    let connections = join_all((0..64).map(|_| pool.get())).await;
    assert!(connections.iter().all(Result::is_ok));
    drop(connections);
    assert_eq!(pool.status().available, 64);
    pool
}

pub(super) async fn builder(service: &Service, place: Place) -> RedisBackendBuilder {
    let by_url = |end: &str| RedisBackend::builder(format!("{}{end}", service.url()));
    match place {
        Place::Url => by_url(""),
        Place::Resp2 => by_url("?protocol=2"),
        Place::UrlWithReplicas => acknowledged(by_url("")),
        Place::Pool => RedisBackend::from_pool(pool(service).await),
        Place::PoolWithReplicas => acknowledged(RedisBackend::from_pool(pool(service).await)),
    }
}

/// Where the connections are from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Url,
    Resp2,
    UrlWithReplicas,
    Pool,
    PoolWithReplicas,
}

pub(super) fn acknowledged(builder: RedisBackendBuilder) -> RedisBackendBuilder {
    builder.min_replicas(NonZeroUsize::MIN, 5 * SECOND)
}

/// A manager with a held lock and open connections.
pub(super) struct Client {
    what: String,
    locks: LockManager,
    held: LockGuard,
}

impl Client {
    pub(super) async fn connect(what: impl Debug, builder: RedisBackendBuilder) -> Self {
        let what = format!("{what:?}");
        let locks = manager_from(builder, LEASE).await;
        let held = locks.acquire(format!("held over {what}")).await.unwrap();
        crowd(&locks, &format!("before, {what}")).await;
        Self { what, locks, held }
    }

    /// Acquires a key, which must be granted by `deadline`, and then many.
    pub(super) async fn is_served(&self, deadline: Instant) {
        let what = &self.what;
        let acquire = self.locks.acquire(format!("first over {what}"));
        let granted = by(deadline, what, acquire.wait(20 * SECOND).into_future()).await;
        granted.unwrap().release().await.unwrap();
        crowd(&self.locks, &format!("after, {what}")).await;
    }

    /// Expects that the lock is renewed by now.
    pub(super) async fn keeps_lock(self) {
        sleep(LEASE).await;
        assert!(
            self.held.is_held(),
            "{}: {:?}",
            self.what,
            self.held.lost_reason()
        );
        self.held.release().await.unwrap();
    }
}

/// Acquires and releases 100 keys concurrently.
async fn crowd(locks: &LockManager, what: &str) {
    let all = (0..100).map(|n| async move {
        let guard = locks.acquire(format!("{what} {n}")).await;
        guard
            .unwrap_or_else(|error| panic!("{what}: {error:?}"))
            .release()
            .await
            .unwrap();
    });
    join_all(all).await;
}
