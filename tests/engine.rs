//! What a user of the engine sees, on the memory backend and mostly in paused time.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{ErrorKind, LockKey, LockManager, Memory};

#[path = "support/simulated.rs"]
mod simulated;

const MS: Duration = Duration::from_millis(1);

fn manager(memory: &Memory) -> LockManager {
    LockManager::builder(memory.clone()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn hold_counts_go_0_1_2_1_0() {
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
async fn another_owner_is_refused_while_held_and_admitted_after_the_last_release() {
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

/// Redisson #4467: a lock belonged to a thread, and two requests on one thread both entered.
#[tokio::test(start_paused = true)]
async fn two_acquires_of_one_task_on_one_thread_are_strangers() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.unwrap();
    let second = locks.acquire("k").wait(100 * MS).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Busy);
    let other_task = tokio::spawn(locks.acquire("k").no_wait().into_future());
    assert!(other_task.await.unwrap().unwrap_err().is_busy());
    assert_eq!(guard.hold_count(), 1);
}

/// rslock 0.10: what a dropped guard did depended on a feature.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_gives_the_lock_back() {
    let memory = Memory::new();
    let (here, there) = (manager(&memory), manager(&memory));
    drop(here.acquire("k").await.unwrap());
    there
        .acquire("k")
        .wait(MS)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let panicking = tokio::spawn({
        let here = here.clone();
        async move {
            let _guard = here.acquire("k").await.unwrap();
            panic!("with the lock in hand");
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    drop(there.acquire("k").wait(MS).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_three_seconds_on_a_held_key_ends_in_time() {
    let memory = Memory::new();
    let (here, there) = (manager(&memory), manager(&memory));
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

/// distributed-lock 0.2: a stale release freed the next holder.
#[tokio::test(start_paused = true)]
async fn a_lease_not_given_back_admits_a_waiter_and_its_guard_says_lost() {
    let memory = Memory::new();
    let (here, there) = (manager(&memory), manager(&memory));
    for waiter in [&here, &there] {
        let start = Instant::now();
        let old = here
            .acquire("k")
            .lease(Duration::from_secs(2))
            .await
            .unwrap();
        let new = waiter.acquire("k").await.unwrap();
        assert!(start.elapsed() <= Duration::from_millis(2050));
        assert!(!old.is_held());
        old.lost().await;
        assert!(old.release().await.unwrap_err().is_lost());
        assert!(new.is_held());
        new.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn force_release_frees_and_wakes_and_tells_the_holder() {
    let memory = Memory::new();
    let (here, there) = (manager(&memory), manager(&memory));
    let guard = here.acquire("k").await.unwrap();
    let waiting = tokio::spawn(there.acquire("k").wait_forever().into_future());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    assert!(here.force_release("k").await.unwrap());
    guard.lost().await;
    let other = waiting.await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_millis(10));
    assert!(there.force_release("k").await.unwrap());
    assert!(!here.force_release("k").await.unwrap());
    drop(other);
    // A manager that did not force it hears of it at its next renewal.
    let guard = here.acquire("k").await.unwrap();
    assert!(there.force_release("k").await.unwrap());
    guard.lost().await;
    assert!(start.elapsed() < Duration::from_secs(11));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_given_back_is_not_lost() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.unwrap();
    let mut early = Box::pin(guard.lost());
    assert!(futures_util::poll!(&mut early).is_pending());
    let held = guard.held();
    guard.release().await.unwrap();
    let lost = async { tokio::join!(early, held.lost()) };
    let waited = tokio::time::timeout(Duration::from_secs(100), lost).await;
    assert!(waited.is_err(), "a false alarm");
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_zero_is_a_single_try_for_manager_and_acquire() {
    let wire = simulated::Simulated::new(MS);
    let builder = LockManager::builder(wire).wait(Duration::ZERO);
    let locks = builder.build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    let error = locks.acquire("k").wait(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // A wait that ends before the first answer knows nothing, and says so.
    let error = locks.acquire("other").wait(MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(std::error::Error::source(&error).is_some());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_keeps_a_lock_far_beyond_its_lease() {
    let memory = Memory::new();
    let (here, there) = (manager(&memory), manager(&memory));
    let guard = here.acquire("k").await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(guard.is_held());
        assert!(guard.remaining() > Duration::from_secs(19));
        assert!(there.acquire("k").no_wait().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_at_its_longest_hold_and_given_back() {
    let memory = Memory::new();
    let (here, there) = (manager(&memory), manager(&memory));
    let start = Instant::now();
    let guard = here
        .acquire("k")
        .max_hold(Duration::from_secs(60))
        .await
        .unwrap();
    guard.lost().await;
    assert_eq!(start.elapsed().as_secs(), 60);
    let other = there.acquire("k").wait(100 * MS).await.unwrap();
    assert!(!guard.is_held());
    assert!(other.is_held());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_the_order_they_came() {
    let locks = LockManager::builder(Memory::new())
        .max_waiters_per_key(10_000)
        .build()
        .unwrap();
    let guard = locks.acquire("k").await.unwrap();
    let served = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for n in 0..10_000 {
        let acquire = locks.acquire("k").wait_forever();
        let served = Arc::clone(&served);
        tasks.push(tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), n);
            guard.fencing_token()
        }));
        tokio::task::yield_now().await;
    }
    assert_eq!(locks.snapshot().waiting, 10_000);
    let mut last = guard.fencing_token();
    drop(guard);
    for task in tasks {
        let token = task.await.unwrap();
        assert!(token > last);
        last = token;
    }
    tokio::time::sleep(MS).await;
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn queues_are_bounded_per_key_and_per_manager() {
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
    // Its own queue says more.
    let full = locks.acquire("a").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::TooManyWaiters);
    waiting.pop().unwrap().abort();
    tokio::task::yield_now().await;
    let full = locks.acquire("a").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::TooManyWaiters);
    assert!(full.retry_after().is_some());
}

#[tokio::test(start_paused = true)]
async fn reentrancy_has_a_bound() {
    let locks = LockManager::in_memory();
    let owner = locks.new_owner();
    let mut guards = Vec::new();
    for _ in 0..tower_lock::MAX_HOLD_COUNT {
        guards.push(locks.acquire("k").owner(owner).await.unwrap());
    }
    let error = locks.acquire("k").owner(owner).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReentrancyLimit);
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_taken_all_or_none() {
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
    // The token of the group separates the holders of each of its keys, hand-offs included.
    let token = all.fencing_token();
    let next = tokio::spawn(locks.acquire("a").into_future());
    tokio::time::sleep(MS).await;
    all.release().await.unwrap();
    assert!(next.await.unwrap().unwrap().fencing_token() > token);
}

/// Redisson set the lease of the latest nested acquire, also where the outer one was longer.
#[tokio::test(start_paused = true)]
async fn a_nested_shorter_lease_never_cuts_the_outer_one_short() {
    let locks = LockManager::in_memory();
    let outer = locks.acquire("k").await.unwrap();
    let inner = locks
        .acquire("k")
        .owner(outer.owner())
        .lease(Duration::from_secs(1))
        .await
        .unwrap();
    drop(inner);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(outer.is_held());
    drop(outer);
    // And a longer one lengthens it.
    let outer = locks
        .acquire("f")
        .lease(Duration::from_secs(1))
        .await
        .unwrap();
    let inner = locks
        .acquire("f")
        .owner(outer.owner())
        .lease(Duration::from_secs(20))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(inner.is_held() && outer.is_held());
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(!inner.is_held());
}

#[tokio::test(start_paused = true)]
async fn run_stops_the_work_when_the_lock_is_lost() {
    let locks = LockManager::in_memory();
    let sum = locks.acquire("k").run(|_| async { 1 + 1 }).await.unwrap();
    assert_eq!(sum, 2);
    let error = locks
        .acquire("k")
        .lease(Duration::from_secs(1))
        .run(|_| std::future::pending::<()>())
        .await
        .unwrap_err();
    assert!(error.is_lost());
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_the_new_wakes_the_waiting_and_lets_holders_finish() {
    let memory = Memory::new();
    let locks = manager(&memory);
    let guard = locks.acquire("k").await.unwrap();
    let waiter = tokio::spawn(locks.acquire("k").into_future());
    tokio::task::yield_now().await;
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(Duration::from_secs(600)).await }
    });
    let error = waiter.await.unwrap().unwrap_err();
    assert!(error.is_shutting_down());
    assert!(locks.acquire("other").await.unwrap_err().is_shutting_down());
    // Holders are renewed and may re-enter.
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(guard.is_held());
    drop(locks.acquire("k").owner(guard.owner()).await.unwrap());
    assert!(!shutdown.is_finished());
    drop(guard);
    assert!(shutdown.await.unwrap().is_idle());
    // What is left is told.
    let locks = manager(&memory);
    let _guard = locks.acquire("k").await.unwrap();
    let left = locks.shutdown(Duration::from_secs(1)).await;
    assert_eq!((left.held, left.lanes), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn bad_options_are_named() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_managers_times_a_hundred_increments_make_1600() {
    let memory = Memory::new();
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let locks = manager(&memory);
        let counter = Arc::clone(&counter);
        tasks.push(tokio::spawn(async move {
            for _ in 0..100 {
                let guard = locks.acquire("k").wait_forever().await.unwrap();
                let read = counter.load(Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(50)).await;
                counter.store(read + 1, Ordering::SeqCst);
                drop(guard);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), 1600);
}
