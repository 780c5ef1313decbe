//! Servers that do not reply.

use std::future::IntoFuture as _;

use tokio::task::JoinHandle;
use tower_lock::backend::Backend as _;
use tower_lock::backend::{AcquireRequest, LeaseId};
use tower_lock::{Error, ErrorKind, LockGuard, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use super::{LEASE, REACHED, UNREACHED, is_unavailable, logged};
use crate::support::cluster::Cluster;
use crate::support::engine::{PATIENCE, SECOND, connected, eventually, prompt_manager};
use crate::support::proxy::{Proxy, Swallow};
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

const LEFT: &str = "INFO server removed";

const MOVED: &str = "INFO primary changed";

/// A `FAILOVER` pauses writes in the same way; the server still replies to `PING`.
#[test]
fn write_pause_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let locks = prompt_manager(server.url(), LEASE).await;
        server.cli(&["CLIENT", "PAUSE", "3000", "WRITE"]);
        for _ in 0..3 {
            let waiting = locks.acquire("k").wait(SECOND * 3 / 4);
            assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(log.messages(), [UNREACHED]);
        drop(locks.acquire("k").wait(PATIENCE).await.unwrap());
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
    });
}

/// The link recovers while its replacement is being opened; the replacement then fails.
#[test]
fn failed_dial_beside_healthy_link_is_not_logged() {
    logged(|log| async move {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port()).await;
        let builder = || RedisBackend::builder(proxy.url()).response_timeout(SECOND / 5);
        let backend = connected(|| builder().connect_timeout(SECOND)).await;
        let key = LockKey::new("k");
        let mut number = 0;
        let mut acquire = async || {
            number += 1;
            let lease = LeaseId::new(Uuid::new_v4(), number);
            let request = AcquireRequest::new(key.clone(), lease, LEASE);
            backend.try_acquire(&request).await
        };
        proxy.freeze();
        acquire().await.unwrap_err();
        // The frozen link loses no bytes, the next one loses all.
        proxy.swallow(Swallow::Both);
        let dials = proxy.accepted();
        acquire().await.unwrap_err();
        assert_eq!(proxy.accepted(), dials + 1, "a dial is in flight");
        assert_eq!(log.messages(), [UNREACHED]);
        proxy.heal();
        eventually("the link recovers", || log.messages().len() > 1).await;
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
        // Until the dial has failed.
        tokio::time::sleep(SECOND).await;
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
        acquire().await.unwrap();
    });
}

#[test]
fn server_loss_and_recovery_are_logged_once() {
    logged(|log| async move {
        let mut server = RedisServer::start();
        let locks = prompt_manager(server.url(), LEASE).await;
        server.kill();
        for _ in 0..3 {
            is_unavailable(&locks).await;
        }
        assert_eq!(log.messages(), [UNREACHED]);
        server.launch_again();
        let again = async { while locks.acquire("k").no_wait().await.is_err() {} };
        tokio::time::timeout(PATIENCE, again).await.unwrap();
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
    });
}

/// Makes one attempt without retries, which must fail.
async fn fails(backend: &RedisBackend) {
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::new_v4(), 1));
    let acquired = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease, LEASE))
        .await;
    acquired.unwrap_err();
}

#[test]
fn server_hang_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let backend = RedisBackend::builder(server.url()).connect();
        let backend = backend.await.unwrap();
        server.stop_process();
        fails(&backend).await;
        assert_eq!(log.messages(), [UNREACHED]);
        server.continue_process();
        // The release that follows the acquire on the same connection gets a reply.
        eventually("a reply", || log.messages() == [UNREACHED, REACHED]).await;
    });
}

/// A dropped backend cannot observe a recovery.
#[test]
fn backend_drop_ends_outage() {
    logged(|log| async move {
        let mut server = RedisServer::start();
        let backend = RedisBackend::builder(server.url()).connect();
        let backend = backend.await.unwrap();
        server.kill();
        fails(&backend).await;
        assert_eq!(log.messages(), [UNREACHED]);
        drop(backend);
        eventually("the end", || log.messages() == [UNREACHED, LEFT]).await;
    });
}

/// Returns a lock held by `here` and the waiter of `there`.
async fn contended(
    here: &LockManager,
    there: &LockManager,
    key: &str,
) -> (LockGuard, JoinHandle<Result<LockGuard, Error>>) {
    let guard = here.acquire(key).wait(PATIENCE).await.unwrap();
    let before = there.snapshot().waiting;
    let waiting = tokio::spawn(there.acquire(key).wait_forever().into_future());
    eventually("queued", || there.snapshot().waiting > before).await;
    (guard, waiting)
}

#[test]
fn cluster_node_outages_end_after_recovery() {
    logged(|log| async move {
        let mut cluster = Cluster::start();
        // No server listens at this seed, which is dialed repeatedly.
        let seed = "127.0.0.1:1";
        let url = cluster.url().replace("//", &format!("//{seed},"));
        let (here, there) = (
            prompt_manager(&url, LEASE).await,
            prompt_manager(&url, LEASE).await,
        );
        let keys = cluster.primaries().into_iter().map(|primary| {
            let mut keys = (0..).map(|n| format!("key {n}"));
            let key = keys.find(|key| cluster.node_of(&format!("lock:{key}")) == primary);
            key.unwrap()
        });
        let keys: Vec<_> = keys.collect();
        let mut held = Vec::new();
        for key in &keys {
            held.push(contended(&here, &there, key).await);
        }
        assert_eq!(log.text(), "");

        let killed = cluster.node_of(&format!("lock:{}", keys[0]));
        let address = cluster.node(killed).address();
        let slot = cluster.slot(&format!("lock:{}", keys[0]));
        cluster.kill(killed);
        cluster.failover(slot, killed).await;
        cluster.restart(killed).await;
        for (guard, waiting) in held {
            drop(guard);
            drop(waiting.await.unwrap().unwrap());
        }
        let mut held = Vec::new();
        for key in &keys {
            held.push(contended(&here, &there, key).await);
        }
        eventually("all outages are over", || log.troubled().is_empty()).await;
        let text = log.text();
        let reported = log.reported();
        assert!(
            reported.contains(&(UNREACHED.to_owned(), address)),
            "{text}"
        );
        assert!(
            reported.iter().all(|(_, address)| address != seed),
            "{text}"
        );
    });
}

#[test]
fn failover_is_logged_once_and_names_servers() {
    logged(|log| async move {
        let mut set = SentinelSet::start();
        let locks = prompt_manager(set.url(set.service()), LEASE).await;
        let guard = locks.acquire("held").await.unwrap();
        assert_eq!(log.text(), "");
        let old = set.node(set.primary()).address();
        let killed = set.kill_primary();
        is_unavailable(&locks).await;
        set.failover().await;
        drop(locks.acquire("other").wait(PATIENCE).await.unwrap());
        set.restart(killed).await;
        drop(locks.acquire("another").wait(PATIENCE).await.unwrap());
        let text = log.text();
        assert_eq!(log.count(MOVED), 1, "{text}");
        let new = set.node(set.primary()).address();
        assert!(text.contains(&format!("primary=\"{new}\"")), "{text}");
        assert_eq!(log.count(UNREACHED), 1, "{text}");
        assert_eq!(log.count(REACHED), 1, "{text}");
        let cause = format!("primary {old} is unusable: ");
        assert!(text.contains(&cause), "{text}");
        drop(guard);
    });
}
