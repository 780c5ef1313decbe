//! A primary behind a virtual address, and its failover.

use std::fmt::Debug;
use std::num::NonZeroUsize;

use deadpool_redis::{Manager, Pool, Runtime};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{LockGuard, LockManager, RedisBackend};

use crate::support::engine::{SECOND, by, manager_from};
use crate::support::patience::until;
use crate::support::redis_server::RedisServer;
use crate::support::vip::Vip;

/// For locks that are lost unless they are renewed within this time.
pub(super) const LEASE: std::time::Duration = std::time::Duration::from_secs(9);

/// The limit for a grant after the endpoint leads to the new primary.
pub(super) const NEXT_GRANT: std::time::Duration = std::time::Duration::from_secs(2);

/// Three servers, of which the first starts as the primary, behind one address.
pub(super) struct Service {
    pub(super) servers: Vec<RedisServer>,
    pub(super) vip: Vip,
}

impl Service {
    pub(super) async fn start() -> Self {
        let options = ["--repl-diskless-sync-delay", "0"];
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start_with(&options)).collect();
        let vip = Vip::start(servers[0].port()).await;
        let service = Self { servers, vip };
        service.follow(0, &[1, 2]).await;
        service
    }

    async fn follow(&self, primary: usize, replicas: &[usize]) {
        let port = self.servers[primary].port().to_string();
        for replica in replicas {
            self.servers[*replica].cli(&["REPLICAOF", "127.0.0.1", &port]);
        }
        let logs = || self.servers[primary].log();
        let is_connected = |it: &usize| self.servers[*it].cli(&["ROLE"]).contains("connected");
        until("replicas in sync", logs, || {
            replicas.iter().all(is_connected)
        })
        .await;
    }

    /// Makes the second server the primary, and the first one its replica. The endpoint still leads to the first.
    pub(super) async fn promote(&self) {
        self.replicated().await;
        self.servers[1].cli(&["REPLICAOF", "NO", "ONE"]);
        self.follow(1, &[0, 2]).await;
    }

    /// As [`promote`](Self::promote), without the first server, which hangs.
    pub(super) async fn promote_without_former(&self) {
        self.replicated().await;
        self.servers[0].stop_process();
        self.servers[1].cli(&["REPLICAOF", "NO", "ONE"]);
        self.follow(1, &[2]).await;
    }

    async fn replicated(&self) {
        let offset = |it: usize| {
            let info = self.servers[it].cli(&["INFO", "replication"]);
            let offset = info
                .lines()
                .find(|line| line.starts_with("master_repl_offset:"));
            offset.unwrap_or_default().trim().to_owned()
        };
        let logs = || self.servers[0].log();
        until("replicated", logs, || {
            offset(0) == offset(1) && offset(0) == offset(2)
        })
        .await;
    }

    pub(super) fn lead_to_new(&self) {
        self.vip.lead_to(self.servers[1].port());
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.vip.address())
    }

    /// Returns a pool of the program with 64 idle connections.
    pub(super) async fn pool(&self) -> Pool {
        let manager = Manager::new(self.url()).unwrap();
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

    pub(super) async fn builder(&self, place: Place) -> RedisBackendBuilder {
        let by_url = |end: &str| RedisBackend::builder(format!("{}{end}", self.url()));
        match place {
            Place::Url => by_url(""),
            Place::Resp2 => by_url("?protocol=2"),
            Place::UrlWithReplicas => acknowledged(by_url("")),
            Place::Pool => RedisBackend::from_pool(self.pool().await),
            Place::PoolWithReplicas => acknowledged(RedisBackend::from_pool(self.pool().await)),
        }
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
