//! Leases that are kept after the last hold.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::{LockManager, RedisBackend};

use super::support::{LEASE, percentile};
use crate::support::engine::{
    MS, PATIENCE, SECOND, eventually, manager, nothing_is_left, scripts_called,
};
use crate::support::redis_server::RedisServer;

const KEEP: Duration = Duration::from_millis(50);

async fn keeping(server: &RedisServer) -> LockManager {
    let backend = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
    let locks = LockManager::builder(backend.connect().await.unwrap()).keep_released(KEEP);
    locks.build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_repeated_acquires_need_few_commands() {
    let server = RedisServer::start();
    let locks = keeping(&server).await;
    let (before, start) = (scripts_called(&server), Instant::now());
    let mut last = 0;
    for _ in 0..1_000 {
        let guard = locks.acquire("k").await.unwrap();
        assert!(guard.fencing_token().get() > last);
        last = guard.fencing_token().get();
    }
    let turns = start.elapsed().as_millis() / KEEP.as_millis();
    let sent = scripts_called(&server) - before;
    // The first pairs, three times without tokens, and a command or two for each turn.
    let allowed = 8 + 3 * u64::try_from(turns).unwrap();
    assert!(sent <= allowed, "{sent} commands in {turns} turns");
    assert_eq!(locks.snapshot().held, 0);
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_elsewhere_gets_repeated_key_in_time() {
    const HOLD: Duration = Duration::from_millis(3);
    let server = RedisServer::start();
    let (here, there) = (keeping(&server).await, manager(server.url(), LEASE).await);
    let repeats = tokio::spawn({
        let here = here.clone();
        async move {
            loop {
                let guard = here.acquire("k").wait_forever().await.unwrap();
                sleep(HOLD).await;
                drop(guard);
            }
        }
    });
    let mut waits = Vec::new();
    for round in 0..30 {
        sleep(70 * MS + round * MS).await;
        let start = Instant::now();
        let guard = there.acquire("k").wait(PATIENCE).await.unwrap();
        waits.push(start.elapsed());
        drop(guard);
    }
    repeats.abort();
    // On a busy machine, timers and tasks are late.
    let median = percentile(&mut waits, 50);
    assert!(median <= KEEP + HOLD + 20 * MS, "{waits:?}");
    assert!(percentile(&mut waits, 100) < 800 * MS, "a poll: {waits:?}");
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_key_is_free_after_its_time() {
    let server = RedisServer::start();
    let (here, there) = (keeping(&server).await, manager(server.url(), LEASE).await);
    let start = Instant::now();
    for _ in 0..3 {
        drop(here.acquire("k").await.unwrap());
    }
    let busy = there.acquire("k").no_wait().await;
    assert!(busy.is_err() || start.elapsed() > KEEP, "{busy:?}");
    drop(busy);
    nothing_is_left(&server, &[&here, &there], SECOND, "kept").await;
    // The last handle leaves nothing.
    for _ in 0..3 {
        drop(here.acquire("k").await.unwrap());
    }
    drop(here);
    eventually("it is free", || server.cli(&["EXISTS", "lock:k"]) == "0").await;
}
