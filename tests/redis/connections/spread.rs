//! One address that sends each call to the server of its first key.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{ConnectError, ErrorKind, LockManager, RedisBackend};
use tracing_subscriber::filter::LevelFilter;

use crate::support::endpoint::Endpoint;
use crate::support::engine::{SECOND, eventually, manager};
use crate::support::log::Log;
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const BEGIN: &str = "locks cannot be acquired";

fn two_servers() -> Vec<RedisServer> {
    (0..2).map(|_| RedisServer::start()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spreading_endpoint_is_refused_at_connect() {
    let servers = two_servers();
    let endpoint = Endpoint::start_spreading(&servers).await;
    let backend = RedisBackend::builder(endpoint.url()).connect().await;
    let error = backend.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let text = format!("{error:?}");
    assert!(text.contains("Spread("), "{text}");
    // Neither a counter nor a lock, only keys with a TTL.
    for server in &servers {
        let keys = server.cli(&["KEYS", "*"]);
        assert!(
            keys.lines().all(|key| key.starts_with("lock:self-test:")),
            "{keys}"
        );
        assert!(keys.lines().all(|key| server.cli(&["PTTL", key]) != "-1"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_upstream_is_one_server() {
    let servers = two_servers();
    let endpoint = Endpoint::start_spreading(&servers[..1]).await;
    let locks = manager(endpoint.url(), LEASE).await;
    locks.acquire("k").await.unwrap().release().await.unwrap();
    assert!(!servers[0].cli(&["KEYS", "*"]).contains("self-test"));
}

#[test]
fn later_spreading_stops_grants_until_it_ends() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let log = Log::default();
    log.record(LevelFilter::INFO, || runtime.block_on(spread_later(&log)));
}

async fn spread_later(log: &Log) {
    let servers = two_servers();
    let endpoint = Endpoint::start_spreading(&servers).await;
    endpoint.gather(true);
    let locks = manager(endpoint.url(), LEASE).await;
    // A key of the server that has all keys before, so the renewal after the reconnect finds it.
    let held = locks.acquire("mine").await.unwrap();
    endpoint.gather(false);
    endpoint.cut();
    let until = Instant::now() + 3 * SECOND;
    // It may have taken effect over the connection that was cut.
    let error = locks.acquire("first").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    while Instant::now() < until {
        for n in 0..8 {
            // Keys of both servers.
            let error = locks.acquire(format!("k{n}")).no_wait().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
        }
    }
    assert_eq!(log.text().matches(BEGIN).count(), 1, "{}", log.text());
    assert!(log.text().contains("of 64 keys"), "{}", log.text());
    assert!(held.is_held());
    assert!(servers[1].cli(&["KEYS", "lock:[fk]*"]).is_empty());
    endpoint.gather(true);
    let mut guard = None;
    while guard.is_none() {
        guard = locks.acquire("k").wait(SECOND).await.ok();
        assert!(Instant::now() < until + 5 * SECOND, "never");
    }
    held.release().await.unwrap();
    drop(guard);
    eventually("released", || locks.snapshot().is_idle()).await;
}

/// The endpoint is unreachable at first, so nothing is tried at the connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_connect_refuses_spreading_endpoint() {
    let servers = two_servers();
    let endpoint = Endpoint::start_spreading(&servers).await;
    endpoint.close(true);
    let backend = RedisBackend::builder(endpoint.url())
        .connect_lazy()
        .unwrap();
    eventually("tried", || !backend.warnings().is_empty()).await;
    let locks = LockManager::builder(backend).build().unwrap();
    endpoint.close(false);
    let mut kind = ErrorKind::Unavailable;
    while kind == ErrorKind::Unavailable {
        kind = locks.acquire("k").no_wait().await.unwrap_err().kind();
    }
    assert_eq!(kind, ErrorKind::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_is_not_refused_as_several() {
    let server = RedisServer::start();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let backend = RedisBackend::builder(server.url()).connect().await.unwrap();
    assert!(!backend.warnings().is_empty());
}
