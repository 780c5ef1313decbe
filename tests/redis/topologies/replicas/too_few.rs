//! Grants with too few replicas.

use std::num::NonZeroU16;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, BackendErrorKind, LeaseId, Mode, Released, Renewed,
};
use tower_lock::{ErrorKind, LockKey, LockManager};
use uuid::Uuid;

use super::trio::{TTL, Trio, acquire, exists, grant, is_short, online, release, renew};
use crate::support::engine::{FENCE, MS, PATIENCE, SECOND, eventually};
use crate::support::errors::chain;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn grant_with_too_few_replicas_is_released() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    trio.replicas[0].stop_process();
    let start = Instant::now();
    is_short(&acquire(&backend, "k").await.unwrap_err(), "1 of 2");
    assert!(start.elapsed() >= SECOND, "did not wait");
    assert!(!trio.has("k"), "kept");
    trio.replicas[1].stop_process();
    // The backoff after the first one.
    sleep(SECOND).await;
    is_short(&acquire(&backend, "k").await.unwrap_err(), "0 of 2");
    assert!(!trio.has("k"), "kept");
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE);
}

#[tokio::test]
async fn joint_grants_with_too_few_replicas_are_released() {
    for (mode, limit) in [(Mode::Shared, None), (Mode::Permit, NonZeroU16::new(2))] {
        let trio = Trio::start();
        let backend = trio.backend(SECOND).await;
        trio.stop_replicas();
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let request = AcquireRequest::new(LockKey::new("k"), lease, TTL).with_mode(mode);
        let outcome = backend.try_acquire(&request.with_limit(limit)).await;
        is_short(&outcome.unwrap_err(), "0 of 2");
        assert!(!trio.has("k"), "{mode:?} kept");
    }
}

#[tokio::test]
async fn replica_wait_does_not_block_shared_connection() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    grant(&backend, "held").await;
    trio.stop_replicas();
    let mut acquiring = std::pin::pin!(acquire(&backend, "k"));
    let mut renewals = 0;
    let mut slowest = Duration::ZERO;
    let error = loop {
        let start = Instant::now();
        // Both run concurrently: behind `WAIT`, only one renewal would complete.
        tokio::select! {
            biased;
            outcome = &mut acquiring => break outcome.unwrap_err(),
            renewed = renew(&backend, "held") => assert_eq!(renewed, Renewed::Renewed),
        }
        renewals += 1;
        slowest = slowest.max(start.elapsed());
        let other = backend.inspect(&LockKey::new("other")).await.unwrap();
        assert_eq!(other, None);
        sleep(MS).await;
    };
    is_short(&error, "0 of 2");
    assert!(renewals >= 20, "{renewals} renewals within a second");
    assert!(slowest < 500 * MS, "a renewal took {slowest:?}");
    assert_eq!(release(&backend, "held").await, Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_finds_recovered_replicas_within_wait() {
    let trio = Trio::start();
    let backend = trio.backend(100 * MS).await;
    let locks = LockManager::builder(backend).build().unwrap();
    let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
    trio.stop_replicas();
    let error = locks.acquire("k").wait(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        chain(&error).contains("0 of 2 replicas"),
        "{}",
        chain(&error)
    );
    let patient = tokio::spawn(locks.acquire("k").wait(PATIENCE).into_future());
    sleep(500 * MS).await;
    assert!(!patient.is_finished());
    trio.continue_replicas();
    let back = Instant::now();
    let guard = patient.await.unwrap().unwrap();
    // The longest backoff of a waiter, plus time for a busy machine.
    assert!(back.elapsed() < 5 * SECOND, "{:?}", back.elapsed());
    assert!(trio.replicas.iter().all(|replica| exists(replica, "k")));
    guard.release().await.unwrap();
}

/// The release of a short grant notifies all waiters, and each notification causes an attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_without_replicas_back_off() {
    let trio = Trio::start();
    let backends = [trio.backend(20 * MS).await, trio.backend(20 * MS).await];
    trio.stop_replicas();
    let managers = backends.map(|backend| LockManager::builder(backend).build().unwrap());
    let before = trio.primary.calls("wait");
    let start = Instant::now();
    let keys = (0..100).flat_map(|n| managers.iter().map(move |locks| (locks, n % 10)));
    let waits = keys.map(|(locks, n)| locks.acquire(format!("key {n}")).wait(3 * SECOND));
    for error in join_all(waits.map(IntoFuture::into_future)).await {
        // An acquire is busy if another attempt held the key at that moment.
        let kind = error.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Busy));
    }
    // After each backoff, attempts start until the first of them fails.
    let tries = trio.primary.calls("wait") - before;
    let steps = 5 + u64::try_from(start.elapsed().as_millis()).unwrap() / 300;
    assert!((4..=2 * 10 * steps).contains(&tries), "{tries} tries");
}

#[tokio::test]
async fn busy_key_skips_replica_wait() {
    let mut trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    grant(&backend, "k").await;
    trio.replicas.iter_mut().for_each(RedisServer::kill);
    eventually("replicas are gone", || online(&trio.primary) == 0).await;
    let stranger = LeaseId::new(Uuid::new_v4(), 1);
    for _ in 0..3 {
        let start = Instant::now();
        let outcome = backend
            .try_acquire(&AcquireRequest::new(LockKey::new("k"), stranger, TTL))
            .await;
        assert!(matches!(outcome, Ok(Acquired::Busy { .. })), "{outcome:?}");
        assert!(start.elapsed() < PATIENCE / 2, "waited for replicas");
    }
}

#[tokio::test]
async fn earlier_grant_survives_retry_without_replicas() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    let first = grant(&backend, "k").await;
    let second = grant(&backend, "k").await;
    assert!(second > first);
    assert_eq!(trio.primary.cli(&["HVALS", "lock:k"]), "1");
    trio.stop_replicas();
    let error = acquire(&backend, "k").await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(error.may_have_taken_effect(), "it holds the key");
    assert!(chain(&error).contains("0 of 2"), "{}", chain(&error));
    assert_eq!(renew(&backend, "k").await, Renewed::Renewed);
    assert_eq!(release(&backend, "k").await, Released::Released);
}
