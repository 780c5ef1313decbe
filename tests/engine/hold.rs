//! The life of a guard: renewal, loss and release.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{LockManager, Memory};

use crate::support::engine::{MS, SECOND, by, manager_on};

/// rslock 0.10: a feature decided whether dropping a guard released the lock.
#[tokio::test(start_paused = true)]
async fn guard_dropped_or_in_panic_releases_lock() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
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
            panic!("with the lock held");
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    drop(there.acquire("k").wait(MS).await.unwrap());
}

/// distributed-lock 0.2: a stale release freed the next holder.
#[tokio::test(start_paused = true)]
async fn expired_lease_admits_waiter_and_loses_guard() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
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
async fn force_release_wakes_waiter_and_notifies_holder() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
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
    // A manager that did not send the command detects the loss at its next renewal.
    let guard = here.acquire("k").await.unwrap();
    assert!(there.force_release("k").await.unwrap());
    guard.lost().await;
    assert!(start.elapsed() < Duration::from_secs(11));
}

#[tokio::test(start_paused = true)]
async fn lost_after_release_never_completes() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.unwrap();
    let mut early = Box::pin(guard.lost());
    assert!(futures_util::poll!(&mut early).is_pending());
    let held = guard.held();
    guard.release().await.unwrap();
    let lost = async { tokio::join!(early, held.lost()) };
    let waited = tokio::time::timeout(Duration::from_secs(100), lost).await;
    assert!(waited.is_err(), "false loss");
}

#[tokio::test(start_paused = true)]
async fn watchdog_in_long_hold_keeps_lock() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
    let guard = here.acquire("k").await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(guard.is_held());
        assert!(guard.remaining() > Duration::from_secs(19));
        assert!(there.acquire("k").no_wait().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn lock_at_max_hold_is_lost_and_released() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
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

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn max_hold_counts_suspended_time() {
    let locks = manager_on(&Memory::new());
    let guard = locks.acquire("k").max_hold(2 * SECOND).await.unwrap();
    let mut lost = std::pin::pin!(guard.lost());
    tower_lock::test_util::suspend(SECOND);
    assert!(futures_util::poll!(&mut lost).is_pending());
    assert_eq!((guard.is_held(), guard.remaining()), (true, SECOND));
    tower_lock::test_util::suspend(SECOND);
    // The lease of 30 s continues.
    assert_eq!(
        (guard.is_held(), guard.remaining()),
        (false, Duration::ZERO)
    );
    by(Instant::now() + 100 * MS, "the loss", lost).await;
    drop(locks.acquire("k").wait(100 * MS).await.unwrap());
}

/// Redisson replaces the lease with that of the latest nested acquire, even if it is shorter.
#[tokio::test(start_paused = true)]
async fn nested_shorter_lease_keeps_outer_lease() {
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
    // A longer nested lease extends the outer one.
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
async fn run_after_loss_drops_work() {
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
