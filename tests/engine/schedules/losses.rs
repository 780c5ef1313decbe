//! Renewals and force releases that meet.

use futures_util::poll;
use tokio::time::{advance, sleep, timeout};
use tower_lock::LockManager;

use super::support::quick;
use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Command, Fault, Simulated};

/// The watchdog is requested while the only renewal for a fixed lease is in flight.
#[tokio::test(start_paused = true)]
async fn nested_watchdog_hold_during_renewal_is_kept() {
    let wire = Simulated::new(20 * MS);
    let locks = manager_on(&wire);
    let outer = locks.acquire("k").lease(2 * SECOND).await.unwrap();
    let nested = locks
        .acquire("k")
        .owner(outer.owner())
        .lease(3 * SECOND)
        .await
        .unwrap();
    sleep(10 * MS).await; // the renewal is in flight
    let inner = locks.acquire("k").owner(outer.owner()).await.unwrap();
    for _ in 0..20 {
        sleep(500 * MS).await;
        if !inner.is_held() {
            break;
        }
    }
    assert!(
        inner.is_held(),
        "a watchdog lock on a healthy wire was lost"
    );
    drop((outer, nested, inner));
}

/// A guard hands its lease off while `force_release` is in flight.
#[tokio::test(start_paused = true)]
async fn force_release_during_hand_off_loses_next_guard() {
    let wire = Simulated::new(15 * MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let first = locks.acquire("k").await.unwrap();
    let second = tokio::spawn(locks.acquire("k").into_future());
    sleep(MS).await;
    let l = locks.clone();
    let force = tokio::spawn(async move { l.force_release("k").await.unwrap() });
    sleep(10 * MS).await;
    drop(first); // hands off the lease that the command in flight deletes
    let second = second.await.unwrap().unwrap();
    assert!(force.await.unwrap());
    let other = there.acquire("k").await.unwrap();
    sleep(MS).await;
    let both = second.is_held() && other.is_held();
    second.lost().await;
    assert!(!both, "two guards at a time");
}

/// `force_release` is sent while an acquire is in flight.
#[tokio::test(start_paused = true)]
async fn force_release_during_acquire_loses_guard() {
    let wire = Simulated::new(20 * MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let first = tokio::spawn(locks.acquire("k").into_future());
    sleep(5 * MS).await;
    assert!(locks.force_release("k").await.unwrap());
    let first = first.await.unwrap().unwrap();
    let _other = there.acquire("k").await.unwrap();
    let lost = timeout(100 * MS, first.lost()).await;
    assert!(lost.is_ok(), "two guards until the next renewal");
}

/// `is_held` returned `true` after `lost` had completed.
#[tokio::test(start_paused = true)]
async fn guard_reported_lost_stays_lost() {
    let wire = Simulated::new(100 * MS);
    let locks = quick(&wire, SECOND);
    let guard = locks.acquire("k").await.unwrap(); // sent at 0 ms, valid until 988 ms
    sleep(280 * MS).await; // at 480 ms; renewal sent at 333, reply at 533
    assert_eq!(wire.sent(Command::Renew), 1);
    let mut stall = Box::pin(advance(600 * MS)); // paused until 1,080 ms
    assert!(poll!(&mut stall).is_pending());
    assert!(!guard.is_held());
    assert!(
        poll!(Box::pin(guard.lost())).is_ready(),
        "the loss is not reported"
    );
    stall.await;
    sleep(5 * MS).await;
    assert!(!guard.is_held(), "held again after it was lost");
}

/// A renewal that took effect after the loss left the lease in the store.
#[tokio::test(start_paused = true)]
async fn lease_renewed_after_loss_is_released() {
    let wire = Simulated::new(MS);
    let mut slow = wire.clone();
    slow.latency = 300 * MS;
    let locks = quick(&slow, SECOND);
    // Sent at 0 ms, executed at 300 ms, reply at 600 ms, valid until 988 ms. The renewal is overdue
    // by then: executed at 900 ms, its reply known to be lost at 1,400 ms.
    let guard = locks.acquire("k").await.unwrap();
    wire.fail_next(Command::Renew, Fault::AnswerLost);
    let waiter = tokio::spawn(locks.acquire("k").wait_forever().into_future());
    guard.lost().await;
    drop(guard);
    let got = waiter.await.unwrap().unwrap();
    let id = wire.log().iter().find(|e| e.0 == Command::Renew).unwrap().2;
    assert!(
        wire.log()
            .iter()
            .any(|e| e.0 == Command::Release && e.2 == id),
        "the old lease was never released"
    );
    drop(got);
}

/// A nested acquire adds the watchdog to a short fixed lease, and the first renewal fails.
#[tokio::test(start_paused = true)]
async fn failed_renewal_of_widened_lease_keeps_lock() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let outer = locks.acquire("k").lease(SECOND).await.unwrap();
    wire.fail_next(Command::Renew, Fault::Refused);
    let inner = locks.acquire("k").owner(outer.owner()).await.unwrap();
    sleep(2 * SECOND).await;
    assert!(
        inner.is_held(),
        "one failed renewal lost the lock, with a second left"
    );
}

/// The guard has expired, and no task has run since.
#[tokio::test(start_paused = true)]
async fn shutdown_rejects_owner_of_lost_lock() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").lease(SECOND).await.unwrap();
    let mut shutdown = Box::pin(locks.shutdown(10 * SECOND));
    assert!(poll!(&mut shutdown).is_pending());
    let mut stall = Box::pin(advance(5 * SECOND));
    assert!(poll!(&mut stall).is_pending());
    assert!(!guard.is_held());
    let mut again = Box::pin(locks.acquire("k").owner(guard.owner()).into_future());
    let std::task::Poll::Ready(outcome) = poll!(&mut again) else {
        panic!("queued");
    };
    assert!(outcome.unwrap_err().is_shutting_down());
}
