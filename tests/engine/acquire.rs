//! The outcomes of an acquire.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{ErrorKind, LockKey, LockManager, Memory};

use crate::support::engine::{MS, manager_on};
use crate::support::simulated;

#[tokio::test(start_paused = true)]
async fn hold_count_with_nested_guard_goes_up_and_down() {
    let locks = LockManager::in_memory();
    assert!(locks.inspect("k").await.unwrap().is_none());
    let first = locks.acquire("k").await.unwrap();
    assert_eq!(first.hold_count(), 1);
    let second = locks.acquire("k").owner(first.owner()).await.unwrap();
    assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
    assert_eq!(locks.inspect("k").await.unwrap().unwrap().hold_count, 2);
    let held = first.held();
    second.release().await.unwrap();
    assert_eq!(held.hold_count(), 1);
    assert!(held.is_held());
    first.release().await.unwrap();
    assert_eq!(held.hold_count(), 0);
    assert!(!held.is_held());
    assert!(!locks.is_locked("k").await.unwrap());
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn other_owner_is_admitted_after_last_release() {
    let locks = LockManager::in_memory();
    let outer = locks.acquire("k").await.unwrap();
    let inner = locks.acquire("k").owner(outer.owner()).await.unwrap();
    let refused = locks.acquire("k").no_wait().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let waiter = tokio::spawn(locks.acquire("k").into_future());
    tokio::task::yield_now().await;
    drop(outer);
    tokio::time::sleep(MS).await;
    assert!(!waiter.is_finished());
    drop(inner);
    assert!(waiter.await.unwrap().is_ok());
}

/// Redisson #4467: a thread owned the lock, so two requests on one thread both entered.
#[tokio::test(start_paused = true)]
async fn acquires_of_one_task_have_distinct_owners() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.unwrap();
    let second = locks.acquire("k").wait(100 * MS).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Busy);
    let other_task = tokio::spawn(locks.acquire("k").no_wait().into_future());
    assert!(other_task.await.unwrap().unwrap_err().is_busy());
    assert_eq!(guard.hold_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn acquire_of_held_key_ends_within_wait() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
    let _guard = here.acquire("k").await.unwrap();
    for locks in [&here, &there] {
        let start = Instant::now();
        let error = locks
            .acquire("k")
            .wait(Duration::from_secs(3))
            .await
            .unwrap_err();
        let waited = start.elapsed();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.retry_after().is_some());
        assert!(
            (2990..=3350).contains(&waited.as_millis()),
            "waited {waited:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_with_zero_wait_makes_one_attempt() {
    let wire = simulated::Simulated::new(MS);
    let builder = LockManager::builder(wire).wait(Duration::ZERO);
    let locks = builder.build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    let error = locks.acquire("k").wait(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // A wait that ends before the first reply cannot know whether the key is held.
    let error = locks.acquire("other").wait(MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(std::error::Error::source(&error).is_some());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn full_queue_rejects_per_key_and_per_manager() {
    let locks = LockManager::builder(Memory::new())
        .max_waiters_per_key(2)
        .max_waiters(3)
        .build()
        .unwrap();
    let _a = locks.acquire("a").await.unwrap();
    let _b = locks.acquire("b").await.unwrap();
    let mut waiting = Vec::new();
    for key in ["a", "a", "b"] {
        waiting.push(tokio::spawn(locks.acquire(key).into_future()));
        tokio::task::yield_now().await;
    }
    let full = locks.acquire("b").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Overloaded);
    // A full queue of the key takes precedence over a full manager.
    let full = locks.acquire("a").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::TooManyWaiters);
    waiting.pop().unwrap().abort();
    tokio::task::yield_now().await;
    let full = locks.acquire("a").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::TooManyWaiters);
    assert!(full.retry_after().is_some());
}

#[tokio::test(start_paused = true)]
async fn nested_acquire_beyond_limit_is_rejected() {
    let locks = LockManager::in_memory();
    let owner = locks.new_owner();
    let mut guards = Vec::new();
    for _ in 0..64 {
        guards.push(locks.acquire("k").owner(owner).await.unwrap());
    }
    let error = locks.acquire("k").owner(owner).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReentrancyLimit);
}

#[tokio::test(start_paused = true)]
async fn acquire_of_several_keys_is_all_or_nothing() {
    let locks = LockManager::in_memory();
    let b = locks.acquire("b").await.unwrap();
    let error = locks
        .acquire(["c", "b", "a"])
        .wait(100 * MS)
        .await
        .unwrap_err();
    assert!(error.is_busy());
    tokio::time::sleep(MS).await;
    assert!(!locks.is_locked("a").await.unwrap());
    assert!(!locks.is_locked("c").await.unwrap());
    drop(b);
    let all = locks.acquire(["c", "b", "a", "b"]).await.unwrap();
    let keys: Vec<_> = all.keys().map(LockKey::as_str).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    let largest = all.keys().map(|key| all.fencing_token_for(key)).max();
    assert_eq!(largest.unwrap(), Some(all.fencing_token()));
    assert!(all.fencing_token_for(&LockKey::new("d")).is_none());
    // The group's token fences the earlier and later holders of each of its keys.
    let token = all.fencing_token();
    let next = tokio::spawn(locks.acquire("a").into_future());
    tokio::time::sleep(MS).await;
    all.release().await.unwrap();
    assert!(next.await.unwrap().unwrap().fencing_token() > token);
}

#[tokio::test(start_paused = true)]
async fn invalid_option_is_named_in_error() {
    let locks = LockManager::in_memory();
    let error = locks.acquire("k").lease(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("lease"), "{source}");
    let error = locks.acquire("").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    let builder = || LockManager::builder(Memory::new());
    for (field, outcome) in [
        ("wait", builder().wait(Duration::MAX).build()),
        (
            "watchdog_timeout",
            builder().watchdog_timeout(Duration::ZERO).build(),
        ),
        ("max_waiters", builder().max_waiters(0).build()),
        (
            "max_waiters_per_key",
            builder().max_waiters_per_key(0).build(),
        ),
    ] {
        assert_eq!(outcome.unwrap_err().field(), field);
    }
}

#[tokio::test]
async fn run_reports_loss_in_last_poll() {
    let locks = LockManager::in_memory();
    let acquire = locks.acquire("k").lease(Duration::from_millis(20));
    let ran = acquire.run(async |held| {
        // Blocks until the lease has expired.
        while held.is_held() {
            std::thread::yield_now();
        }
    });
    assert_eq!(ran.await.unwrap_err().kind(), ErrorKind::Lost);
}
