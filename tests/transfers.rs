//! The metrics of the queue across processes.
//!
//! It is a program of its own: the process counts transfers, whichever manager reports them.
#![allow(clippy::unwrap_used)]

mod support;

use std::future::IntoFuture as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::poll;
use tokio::task::JoinHandle;
use tower_lock::{LockGuard, LockManager};

use support::engine::{SECOND, eventually, manager};
use support::other_runtime::current_thread;
use support::recorder::Recorder;
use support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const BODY: &str = "lock:k";
const QUEUE: &str = "lock:{lock:k}%queue";
const CHANNEL: &str = "redisson_lock__channel:{lock:k}";

/// Starts to wait under a fixed lease, whose transfer a command confirms. Returns when its place listens.
async fn waits(server: &RedisServer, locks: &LockManager) -> JoinHandle<LockGuard> {
    let mut waiting = Box::pin(locks.acquire("k").lease(LEASE).into_future());
    assert!(poll!(&mut waiting).is_pending());
    let waiting = tokio::spawn(async { waiting.await.unwrap() });
    eventually("queued as a listener", || {
        server.cli(&["ZRANGE", QUEUE, "0", "-1"]).contains('!')
    })
    .await;
    waiting
}

/// Enters a place without a deadline before all others: its process has ended.
fn enter_ended(server: &RedisServer) {
    server.cli(&["ZADD", QUEUE, "0.5", "ended"]);
}

/// One process waits behind an ended one, and a release transfers the lock to it. So does a forced release.
async fn transfer(server: &RedisServer, forced: bool) {
    let holder = manager(server.url(), LEASE).await;
    let other = manager(server.url(), LEASE).await;
    let guard = holder.acquire("k").await.unwrap();
    enter_ended(server);
    let waiting = waits(server, &other).await;
    if forced {
        assert!(holder.force_release("k").await.unwrap());
        drop(guard);
    } else {
        guard.release().await.unwrap();
    }
    let guard = waiting.await.unwrap();
    guard.release().await.unwrap();
}

/// One process waits behind an ended one, and the lock expires.
async fn expiry(server: &RedisServer) {
    server.cli(&["HSET", BODY, "other", "1"]);
    server.cli(&["PEXPIRE", BODY, "300"]);
    enter_ended(server);
    let locks = manager(server.url(), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    guard.release().await.unwrap();
}

/// The lock expires, and the attempt of a process transfers it to another one, which polls and has ended.
async fn transfer_by_attempt(server: &RedisServer) {
    server.cli(&["HSET", BODY, "other", "1"]);
    server.cli(&["PEXPIRE", BODY, "300"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let deadline = (now + 2 * SECOND).as_millis().to_string();
    server.cli(&["ZADD", QUEUE, "0.5", "first", &deadline, "?first"]);
    let locks = manager(server.url(), LEASE).await;
    let guard = locks.acquire("k").lease(LEASE).await.unwrap();
    guard.release().await.unwrap();
}

/// A process confirms a transfer that is 0.3 s old.
async fn late_confirmation(server: &RedisServer) {
    const TRANSFER: &str = r"
        local places = table.concat(redis.call('zrange', KEYS[2], 0, -1), ' ')
        local lease = string.match(places, '!(%S+)')
        redis.call('del', KEYS[1], KEYS[2])
        redis.call('hset', KEYS[1], lease, '1')
        redis.call('pexpire', KEYS[1], 1200)
        return redis.call('publish', ARGV[1] .. '%' .. string.sub(lease, 1, 36), lease)";
    let holder = manager(server.url(), LEASE).await;
    let other = manager(server.url(), LEASE).await;
    let guard = holder.acquire("k").await.unwrap();
    let waiting = waits(server, &other).await;
    let receivers = server.cli(&["EVAL", TRANSFER, "2", BODY, QUEUE, CHANNEL]);
    assert_eq!(receivers, "1");
    waiting.await.unwrap().release().await.unwrap();
    drop(guard);
    // The recorder is that of this thread, and the last report of a manager may come from its own.
    for locks in [holder, other] {
        locks.flush_metrics();
    }
}

#[test]
fn transfer_is_counted_and_timed() {
    let server = RedisServer::start();
    let recorder = Recorder::new();
    let faults = async {
        for forced in [false, true] {
            transfer(&server, forced).await;
        }
        expiry(&server).await;
        transfer_by_attempt(&server).await;
        late_confirmation(&server).await;
    };
    recorder.run(|| current_thread().block_on(faults));
    let seen = recorder.read();
    assert_eq!(seen.count("tower_lock_transfers_total"), 3);
    assert_eq!(seen.count("tower_lock_passed_over_total"), 3);
    let mut idle = seen.samples("tower_lock_transfer_seconds").to_vec();
    idle.sort_by(f64::total_cmp);
    assert_eq!(idle.len(), 3, "two transfers and the late one: {idle:?}");
    assert!((0.3..1.5).contains(&idle[2]), "{idle:?}");
}
