//! The metrics of the queue across processes.
//!
//! It is a program of its own: the process counts transfers, whichever manager reports them.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use futures_util::poll;

use support::engine::{MS, eventually, manager};
use support::other_runtime::current_thread;
use support::recorder::Recorder;
use support::redis_server::RedisServer;

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
    let recorder = Recorder::new();
    let faults = async {
        transfer(&server).await;
        expiry(&server).await;
    };
    recorder.run(|| current_thread().block_on(faults));
    let seen = recorder.read();
    assert_eq!(seen.count("tower_lock_transfers_total"), 1);
    assert_eq!(seen.count("tower_lock_passed_over_total"), 2);
    let idle = seen.samples("tower_lock_transfer_seconds");
    assert!(idle.len() == 1 && (0.0..1.5).contains(&idle[0]), "{idle:?}");
}
