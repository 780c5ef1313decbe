//! Locks over TLS, on each topology.

use std::future::IntoFuture as _;

use deadpool_redis::{Config, Runtime};
use tokio::time::{sleep, timeout};
use tower_lock::backend::Backend as _;
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::backend::{AcquireRequest, Hints, LeaseId, Release};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use super::{SHORT, at, builder, refusal, sentinel_of};
use crate::backend::contract::passes_conformance;
use crate::support::cluster::add_all_slots;
use crate::support::engine::{
    PATIENCE, SECOND, eventually, manager_from, nothing_is_left, subscribers,
};
use crate::support::tls::{Authority, TlsServer};

async fn keeps_the_contract(builder: impl Fn() -> RedisBackendBuilder) {
    let (one, other) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    passes_conformance(&one, &other).await;
}

async fn hinted(hints: &mut Hints) {
    timeout(PATIENCE, hints.next()).await.expect("a hint");
}

#[tokio::test]
async fn redis_over_tls_passes_conformance() {
    let server = TlsServer::start();
    keeps_the_contract(|| builder(&server)).await;
}

#[tokio::test]
async fn redis_with_mutual_tls_passes_conformance() {
    let server = TlsServer::start_mutual();
    let shown = server.authority().issue();
    keeps_the_contract(|| {
        builder(&server).client_certificate(shown.certificate.as_str(), shown.key.as_str())
    })
    .await;
}

#[tokio::test]
async fn cluster_over_tls_passes_conformance() {
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    // One node is enough: like every node, it reports its own address.
    let server = TlsServer::start_with(&options);
    add_all_slots(server.server());
    eventually("a ready cluster", || {
        let info = server.server().cli(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    })
    .await;
    let url = server.url().replace("rediss://", "rediss+cluster://");
    let of_cluster = || at(&url).ca_certificate(server.ca());
    keeps_the_contract(of_cluster).await;
    let other = at(&url).ca_certificate(Authority::new().ca());
    assert!(refusal(other).await.contains("certificate"));
}

#[tokio::test]
async fn sentinel_over_tls_finds_primary() {
    let primary = TlsServer::start();
    let (_sentinel, url) = sentinel_of(&primary);
    let locks = manager_from(at(&url).ca_certificate(primary.ca()), SHORT).await;
    let guard = locks.acquire("a").await.unwrap();
    assert_eq!(primary.server().cli(&["EXISTS", "lock:a"]), "1");
    guard.release().await.unwrap();
    let other = at(&url).ca_certificate(Authority::new().ca());
    assert!(refusal(other).await.contains("certificate"));
}

#[tokio::test]
async fn locks_over_tls_use_no_plain_connection() {
    let server = TlsServer::start();
    let (here, there) = (
        manager_from(builder(&server), SHORT).await,
        manager_from(builder(&server), SHORT).await,
    );
    let guard = here.acquire("a").await.unwrap();
    let waiting = tokio::spawn(there.acquire("a").wait_forever().into_future());
    eventually("it subscribes", || subscribers(server.server(), "a") > 0).await;
    sleep(2 * SHORT).await;
    assert!(guard.is_held() && !waiting.is_finished(), "renewed");

    let local = format!("laddr=127.0.0.1:{} ", server.port());
    for kind in ["normal", "pubsub"] {
        let clients = server.server().clients(kind);
        assert!(!clients.is_empty(), "{kind}");
        assert!(clients.iter().all(|it| it.contains(&local)), "{clients:?}");
    }
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
    nothing_is_left(server.server(), &[&here, &there], PATIENCE, "the end").await;
}

#[tokio::test]
async fn notifications_arrive_over_tls() {
    let server = TlsServer::start_mutual();
    let shown = server.authority().issue();
    let config = Config::from_url(server.server().url());
    let pool = config.create_pool(Some(Runtime::Tokio1)).unwrap();
    let with = |builder: RedisBackendBuilder| {
        let builder = builder.client_certificate(shown.certificate.as_str(), shown.key.as_str());
        builder.connect()
    };
    for backend in [
        with(builder(&server)).await.unwrap(),
        // The pool sends the commands. The notifier uses a TLS connection of its own.
        with(
            RedisBackend::from_pool(pool)
                .notify(server.url())
                .ca_certificate(server.ca()),
        )
        .await
        .unwrap(),
    ] {
        let (key, lease) = (LockKey::new("a"), LeaseId::new(Uuid::new_v4(), 1));
        let granted = backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease, 10 * SECOND))
            .await;
        granted.unwrap();
        let mut hints = backend.watch(&key, Uuid::new_v4());
        hinted(&mut hints).await;
        for released in backend.release(&[Release::new(key, lease)]).await {
            released.unwrap();
        }
        hinted(&mut hints).await;
    }
}

#[tokio::test]
async fn tls_1_2_server_accepts_connection() {
    let options = ["--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2"];
    let server = TlsServer::start_with(&options);
    builder(&server).connect().await.unwrap();
}

#[tokio::test]
async fn ca_bundle_with_one_matching_ca_is_accepted() {
    let server = TlsServer::start();
    let bundle = [Authority::new().ca(), server.ca()].concat();
    let builder = at(server.url()).ca_certificate(bundle);
    builder.connect().await.unwrap();
}
