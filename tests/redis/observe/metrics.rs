//! The metrics of the queue across processes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::poll;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::support::engine::{MS, eventually, manager};
use crate::support::other_runtime::current_thread;
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const BODY: &str = "lock:k";
const QUEUE: &str = "lock:{lock:k}%queue";

/// One process waits behind an ended one, and a release transfers the lock to it.
async fn transfer(server: &RedisServer) {
    let holder = manager(server.url(), LEASE).await;
    let other = manager(server.url(), LEASE).await;
    let guard = holder.acquire("k").await.unwrap();
    // A place without a deadline, before all others.
    server.cli(&["ZADD", QUEUE, "0.5", "ended"]);
    // The message of a transfer is no grant of a fixed lease, so it is confirmed.
    let mut waiting = Box::pin(other.acquire("k").lease(LEASE).into_future());
    assert!(poll!(&mut waiting).is_pending());
    let waiting = tokio::spawn(waiting);
    eventually("queued as a listener", || {
        server.cli(&["ZRANGE", QUEUE, "0", "-1"]).contains('!')
    })
    .await;
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    tokio::time::sleep(MS).await;
    guard.release().await.unwrap();
}

/// One process waits behind an ended one, and the lock expires.
async fn expiry(server: &RedisServer) {
    server.cli(&["HSET", BODY, "other", "1"]);
    server.cli(&["PEXPIRE", BODY, "300"]);
    server.cli(&["ZADD", QUEUE, "0.5", "ended"]);
    let locks = manager(server.url(), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    guard.release().await.unwrap();
}

#[test]
fn transfer_is_counted_and_timed() {
    let server = RedisServer::start();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let faults = async {
        transfer(&server).await;
        expiry(&server).await;
    };
    metrics::with_local_recorder(&recorder, || current_thread().block_on(faults));
    let mut seen = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        seen.insert(key.key().name().to_owned(), value);
    }
    let counted = |name: &str| match seen.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(counted("tower_lock_transfers_total"), 1);
    assert_eq!(counted("tower_lock_passed_over_total"), 2);
    let Some(DebugValue::Histogram(idle)) = seen.get("tower_lock_transfer_seconds") else {
        panic!("no confirmation");
    };
    assert_eq!(idle.len(), 1);
    assert!((0.0..1.5).contains(&idle[0].into_inner()), "{idle:?}");
}
