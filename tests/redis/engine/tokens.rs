//! Fencing tokens and mutual exclusion of several managers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::{FencingToken, LockManager, RedisBackend};

use super::support::LEASE;
use crate::support::engine::{
    PATIENCE, SECOND, eventually, manager, nothing_is_left, scripts_called,
};
use crate::support::redis_server::RedisServer;

/// Redisson's `getFencedLock` uses the next number of the same counter as its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_counter_yields_unique_tokens() {
    const COUNTER: &str = "redisson_lock_token:{k}";
    let server = RedisServer::start();
    let manager = async || {
        let backend = RedisBackend::builder(server.url()).prefix("");
        let backend = backend.redisson_fencing_tokens().connect().await.unwrap();
        LockManager::builder(backend).build().unwrap()
    };
    let locks = manager().await;
    assert_eq!(server.cli(&["KEYS", "*"]), "", "keys left by the self-test");
    let mut tokens = vec![locks.acquire("k").await.unwrap().fencing_token().get()];
    // Most of these are hand-offs inside the process, but each requests its own number.
    let holders = (0..50).map(|_| async {
        let guard = locks.acquire("k").await.unwrap();
        guard.fencing_token().get()
    });
    tokens.append(&mut join_all(holders).await);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(tokens[0], 1);
    let counter: i64 = server.cli(&["GET", COUNTER]).parse().unwrap();
    assert!(tokens.iter().all(|token| *token <= counter), "{tokens:?}");
    // Redisson increments the counter in the same way.
    let of_java: i64 = server.cli(&["INCR", COUNTER]).parse().unwrap();
    eventually("released", || server.cli(&["EXISTS", "k"]) == "0").await;
    let guard = locks.acquire("k").await.unwrap();
    let next = guard.fencing_token().get();
    assert!(next > of_java, "{next} after {of_java}");
    // A message transfers the lock to another process, which takes its token from the same counter.
    let other = manager().await;
    let waiting = tokio::spawn(async move { other.acquire("k").wait(PATIENCE).await.unwrap() });
    eventually("a place that listens", || {
        let places = server.cli(&["ZRANGE", "{k}%queue", "0", "-1"]);
        places.lines().any(|place| place.starts_with('!'))
    })
    .await;
    let before = scripts_called(&server);
    guard.release().await.unwrap();
    let transferred = waiting.await.unwrap();
    assert_eq!(scripts_called(&server), before + 2, "a confirmed transfer");
    let token = transferred.fencing_token().get();
    assert!(token > next, "{token} after {next}");
    assert_eq!(server.cli(&["GET", COUNTER]), token.to_string());
    transferred.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), COUNTER);
}

/// Reads, sleeps and writes: two at a time would lose an increment.
async fn increments(managers: usize, each: u64) {
    let server = RedisServer::start();
    let counter = Arc::new(AtomicU64::new(0));
    let mut all = Vec::new();
    // In turn: a hundred at once can exceed the response timeout on a busy machine.
    for _ in 0..managers {
        all.push(manager(server.url(), LEASE).await);
    }
    let tasks: Vec<_> = (all.iter().cloned())
        .map(|locks| {
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                for _ in 0..each {
                    let guard = locks.acquire("k").wait_forever().await.unwrap();
                    let read = counter.load(Ordering::SeqCst);
                    sleep(Duration::from_micros(100)).await;
                    counter.store(read + 1, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let expected = all.len() as u64 * each;
    assert_eq!(counter.load(Ordering::SeqCst), expected);
    let all: Vec<_> = all.iter().collect();
    nothing_is_left(&server, &all, 2 * SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_managers_lose_no_increments() {
    increments(16, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_managers_lose_no_increments() {
    increments(100, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_increase_across_managers_and_restart() {
    let mut server = RedisServer::start();
    let managers = [
        manager(server.url(), LEASE).await,
        manager(server.url(), LEASE).await,
    ];
    let tokens = Arc::new(Mutex::new(Vec::<FencingToken>::new()));
    let grants = async |each: usize| {
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let locks = managers[n % 2].clone();
                let tokens = Arc::clone(&tokens);
                tokio::spawn(async move {
                    for _ in 0..each {
                        let guard = locks.acquire("k").wait_forever().await.unwrap();
                        // In the order of the grants, since the lock is held.
                        tokens.lock().unwrap().push(guard.fencing_token());
                        tokio::task::yield_now().await;
                        drop(guard);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    };
    let before = scripts_called(&server);
    grants(900).await;
    let commands = scripts_called(&server) - before;
    assert!(commands < 4_500, "{commands} for 9000 grants: no hand-offs");
    server.restart_empty();
    grants(100).await;
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 10_000);
    for pair in tokens.windows(2) {
        assert!(pair[0] < pair[1], "{pair:?}");
    }
}

/// Each key is handed off a few times in each turn. If each turn took many counters, the counter would outrun the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_busy_keys_survive_empty_restart() {
    const KEYS: usize = 1_000;
    let mut server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    let end = Instant::now() + 2 * SECOND;
    let holders = (0..3 * KEYS).map(|number| {
        let (locks, key) = (locks.clone(), format!("k{}", number % KEYS));
        tokio::spawn(async move {
            let mut last = 0;
            while Instant::now() < end {
                let guard = locks.acquire(key.as_str()).wait_forever().await.unwrap();
                last = guard.fencing_token().get();
                sleep(Duration::from_millis(10)).await;
            }
            last
        })
    });
    let mut last = 0;
    for holder in holders.collect::<Vec<_>>() {
        last = last.max(holder.await.unwrap());
    }
    server.restart_empty();
    let guard = locks.acquire("k0").wait(PATIENCE).await.unwrap();
    let next = guard.fencing_token().get();
    assert!(next > last, "{next} after {last}");
}
