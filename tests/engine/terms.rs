//! A nested acquire extends the lease until its release; then the terms of the other holds apply.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::Backend as _;
use tower_lock::{LockGuard, LockKey, LockManager};

use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Fault, Simulated, managers};

/// The length of a renewed lease.
const WATCHDOG: Duration = Duration::from_secs(3);

async fn nested(locks: &LockManager, outer: &LockGuard) -> LockGuard {
    locks.acquire("k").owner(outer.owner()).await.unwrap()
}

async fn nested_lease(locks: &LockManager, outer: &LockGuard, lease: Duration) -> LockGuard {
    let acquire = locks.acquire("k").owner(outer.owner()).lease(lease);
    acquire.await.unwrap()
}

/// Asserts that the guard is lost and the key is free.
async fn is_lost_now(locks: &LockManager, guard: &LockGuard) {
    assert!(!guard.is_held());
    let reported = timeout(10 * MS, guard.lost()).await;
    reported.expect("the loss is reported");
    let next = timeout(60 * MS, locks.acquire("k")).await;
    drop(next.expect("the key is free").unwrap());
}

#[tokio::test(start_paused = true)]
async fn nested_watchdog_renews_outer_lease() {
    for locks in managers(WATCHDOG) {
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        sleep(200 * MS).await;
        let inner = nested(&locks, &outer).await;
        for _ in 0..20 {
            sleep(SECOND).await;
            assert!(outer.is_held() && inner.is_held());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn outer_lease_ends_as_set_after_nested_watchdog() {
    for locks in managers(WATCHDOG) {
        let start = Instant::now();
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        sleep(200 * MS).await;
        let inner = nested(&locks, &outer).await;
        sleep(300 * MS).await;
        drop(inner);
        sleep(400 * MS).await;
        assert!(outer.is_held(), "lost before its end");
        let lost = timeout(60 * SECOND, outer.lost()).await;
        lost.expect("the outer lease ends");
        assert!(start.elapsed() <= SECOND + 10 * MS);
        is_lost_now(&locks, &outer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn outer_lease_past_its_end_is_lost_after_nested() {
    for locks in managers(WATCHDOG) {
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        let inner = nested(&locks, &outer).await;
        sleep(5 * SECOND).await;
        assert!(outer.is_held() && inner.is_held());
        drop(inner);
        is_lost_now(&locks, &outer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nested_guard_drop_resolves_pending_lost() {
    for locks in managers(WATCHDOG) {
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        let inner = nested(&locks, &outer).await;
        let held = outer.held();
        let lost = tokio::spawn(async move { held.lost().await });
        sleep(5 * SECOND).await;
        assert!(!lost.is_finished());
        drop(inner);
        let reported = timeout(10 * MS, lost).await;
        reported.expect("the loss is reported").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn outer_lease_waits_for_last_of_nested_guards() {
    for locks in managers(WATCHDOG) {
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        let first = nested(&locks, &outer).await;
        let second = nested(&locks, &outer).await;
        sleep(5 * SECOND).await;
        drop(first);
        sleep(10 * SECOND).await;
        assert!(outer.is_held() && second.is_held());
        drop(second);
        is_lost_now(&locks, &outer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn longer_nested_lease_ends_with_its_guard() {
    for locks in managers(WATCHDOG) {
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        let inner = nested_lease(&locks, &outer, 4 * SECOND).await;
        sleep(2 * SECOND).await;
        assert!(outer.is_held() && inner.is_held());
        drop(inner);
        is_lost_now(&locks, &outer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn longer_nested_lease_ends_as_set() {
    for locks in managers(WATCHDOG) {
        let start = Instant::now();
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        sleep(500 * MS).await;
        let inner = nested_lease(&locks, &outer, 4 * SECOND).await;
        sleep(3900 * MS).await;
        assert!(outer.is_held() && inner.is_held());
        inner.lost().await;
        assert!(start.elapsed() <= 4510 * MS);
        is_lost_now(&locks, &outer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nested_watchdog_outlives_outer_lease() {
    for locks in managers(WATCHDOG) {
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        let inner = nested(&locks, &outer).await;
        sleep(200 * MS).await;
        drop(outer);
        sleep(20 * SECOND).await;
        assert!(inner.is_held());
        assert_eq!(inner.hold_count(), 1);
        inner.release().await.unwrap();
        assert!(!locks.is_locked("k").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn nested_lease_ends_as_set_after_outer_lease() {
    for locks in managers(WATCHDOG) {
        let start = Instant::now();
        let outer = locks.acquire("k").lease(SECOND).await.unwrap();
        let inner = nested_lease(&locks, &outer, 4 * SECOND).await;
        drop(outer);
        sleep(3900 * MS).await;
        assert!(inner.is_held());
        inner.lost().await;
        assert!(start.elapsed() <= 4010 * MS);
        is_lost_now(&locks, &inner).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nested_lease_ends_as_set_after_outer_watchdog() {
    for locks in managers(WATCHDOG) {
        let outer = locks.acquire("k").await.unwrap();
        let inner = nested_lease(&locks, &outer, 4 * SECOND).await;
        sleep(SECOND).await;
        drop(outer);
        sleep(2900 * MS).await;
        assert!(inner.is_held(), "lost before its end");
        sleep(110 * MS).await;
        is_lost_now(&locks, &inner).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shorter_nested_lease_keeps_outer_end() {
    for locks in managers(WATCHDOG) {
        let start = Instant::now();
        let outer = locks.acquire("k").lease(2 * SECOND).await.unwrap();
        let inner = nested_lease(&locks, &outer, 100 * MS).await;
        sleep(SECOND).await;
        assert!(outer.is_held());
        drop(inner);
        sleep(900 * MS).await;
        assert!(outer.is_held());
        outer.lost().await;
        assert!(start.elapsed() <= 2010 * MS);
    }
}

/// The store holds the lease for the TTL of the outer acquire, whatever TTL the nested one requests.
#[tokio::test(start_paused = true)]
async fn release_is_retried_to_end_of_longest_lease() {
    let wire = Simulated::new(MS);
    let builder = LockManager::builder(wire.clone()).watchdog_timeout(WATCHDOG);
    let locks = builder.build().unwrap();
    let start = Instant::now();
    let outer = locks.acquire("k").lease(1000 * SECOND).await.unwrap();
    wire.down(Some(Fault::CommandLost));
    let inner = nested(&locks, &outer).await;
    sleep(SECOND).await;
    drop((inner, outer));
    sleep(995 * SECOND).await;
    wire.down(None);
    let key = LockKey::new("k");
    assert!(wire.memory.inspect(&key).await.unwrap().is_some());
    sleep(2 * SECOND).await;
    assert!(start.elapsed() < 1000 * SECOND);
    assert!(wire.memory.inspect(&key).await.unwrap().is_none());
}
