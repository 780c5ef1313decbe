//! The end of a connection is announced, although no command is in flight.

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{LockManager, RedisBackend};

use crate::support::cluster::Cluster;
use crate::support::engine::{MS, SECOND, eventually, manager};
use crate::support::other_runtime::current_thread;
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

/// Its watchdog renews after 10 s.
const LEASE: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_idle_connection_renews_holders() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let mut fastest = Duration::MAX;
    for round in 0..ROUNDS {
        let locks = manager(proxy.url(), LEASE).await;
        let guard = locks.acquire("k").await.unwrap();
        server.cli(&["DEL", "lock:k"]);
        let cut = Instant::now();
        proxy.cut();
        let lost = timeout(5 * SECOND, guard.lost()).await;
        lost.unwrap_or_else(|_| panic!("round {round}: the holder is notified"));
        fastest = fastest.min(cut.elapsed());
    }
    // A busy machine may delay some of them. The next renewal is due after 10 s.
    assert!(fastest < SECOND, "{fastest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_idle_cluster_connection_renews_holders() {
    let cluster = Cluster::start();
    let node = cluster.node(cluster.node_of("lock:k"));
    let mut fastest = Duration::MAX;
    for round in 0..ROUNDS {
        let locks = manager(cluster.url(), LEASE).await;
        let guard = locks.acquire("k").await.unwrap();
        node.cli(&["DEL", "lock:k"]);
        let cut = Instant::now();
        node.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let lost = timeout(5 * SECOND, guard.lost()).await;
        lost.unwrap_or_else(|_| panic!("round {round}: the holder is notified"));
        fastest = fastest.min(cut.elapsed());
    }
    assert!(fastest < SECOND, "{fastest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_idle_connection_keeps_intact_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = manager(proxy.url(), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    server.cli(&["PEXPIRE", "lock:k", "20000"]);
    proxy.cut();
    let left = || server.cli(&["PTTL", "lock:k"]).parse::<u64>().unwrap();
    let renewed = eventually("the lease is renewed", || left() > 25_000);
    timeout(5 * SECOND, renewed).await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// The runtime runs no task before the end of the connection, so the watchdog subscribes after it.
#[test]
fn end_before_watchdog_runs_renews_lease() {
    let server = RedisServer::start();
    let runtime = current_thread();
    let locks = runtime.block_on(manager(server.url(), LEASE));
    let guard = {
        let _entered = runtime.enter();
        let mut acquire = locks.acquire("k").into_future();
        loop {
            if let Some(acquired) = (&mut acquire).now_or_never() {
                break acquired.unwrap();
            }
            thread::sleep(MS);
        }
    };
    server.cli(&["PEXPIRE", "lock:k", "20000"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    // Mostly enough for the client to notice. If it does later, the watchdog has subscribed.
    thread::sleep(50 * MS);
    let left = || server.cli(&["PTTL", "lock:k"]).parse::<u64>().unwrap();
    let renewed = eventually("the lease is renewed", || left() > 25_000);
    let renewed = runtime.block_on(async { timeout(5 * SECOND, renewed).await });
    renewed.unwrap();
    assert!(guard.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_ends_meet_backoff() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let builder = RedisBackend::builder(proxy.url()).connections(NonZeroUsize::MIN);
    let backend = builder.connect().await.unwrap();
    let locks = LockManager::builder(backend).build().unwrap();
    let _guard = locks.acquire("k").await.unwrap();
    let before = proxy.accepted();
    let start = Instant::now();
    let mut ends = 0;
    while start.elapsed() < SECOND {
        proxy.cut();
        ends += 1;
        sleep(5 * MS).await;
    }
    let dials = proxy.accepted() - before;
    // A renewal in flight dials at once, so a busy machine dials more often than the backoff. Without a backoff, each
    // end is followed by a dial.
    assert!(
        (1..=ends / 2).contains(&dials),
        "{dials} dials after {ends} ends"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_restart_notifies_idle_holder() {
    let mut server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    server.restart_empty();
    let lost = timeout(5 * SECOND, guard.lost()).await;
    lost.expect("the holder is notified");
}
