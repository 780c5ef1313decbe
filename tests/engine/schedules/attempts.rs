//! Acquires and releases in flight.

use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{ErrorKind, LockManager};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Command, Fault, Simulated};

/// The driver queued after the shutdown had rejected the queue.
#[tokio::test(start_paused = true)]
async fn shutdown_rejects_acquire_with_attempt_in_flight() {
    let wire = Simulated::new(50 * MS);
    let there = manager_on(&wire.another_wire());
    let _held = there.acquire("k").await.unwrap();
    let locks = manager_on(&wire);
    let acquire = tokio::spawn(locks.acquire("k").wait_forever().into_future());
    sleep(20 * MS).await;
    let left = locks.shutdown(10 * SECOND).await;
    assert!(left.is_idle());
    assert!(acquire.is_finished(), "waits after the shutdown");
    assert_eq!(
        acquire.await.unwrap().unwrap_err().kind(),
        ErrorKind::ShuttingDown
    );
}

/// One hanging release delayed the releases of all other keys.
#[tokio::test(start_paused = true)]
async fn hanging_release_does_not_delay_other_keys() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let a = locks.acquire("a").await.unwrap();
    let b = locks.acquire("b").await.unwrap();
    wire.fail_next(Command::Release, Fault::CommandLost);
    drop(a);
    sleep(MS).await;
    let waiter = tokio::spawn(there.acquire("b").into_future());
    sleep(20 * MS).await;
    let start = Instant::now();
    drop(b);
    let _got = waiter.await.unwrap().unwrap();
    assert!(start.elapsed() < 50 * MS);
}

/// The driver of the first attempt queued without a check of `max_waiters_per_key`.
#[tokio::test(start_paused = true)]
async fn queue_after_failed_first_attempt_keeps_bound() {
    let wire = Simulated::new(10 * MS);
    let there = manager_on(&wire.another_wire());
    let _held = there.acquire("k").await.unwrap();
    let locks = LockManager::builder(wire.clone())
        .max_waiters_per_key(1)
        .build()
        .unwrap();
    let _a = tokio::spawn(locks.acquire("k").into_future());
    tokio::task::yield_now().await;
    let _b = tokio::spawn(locks.acquire("k").into_future());
    sleep(100 * MS).await;
    assert!(locks.snapshot().waiting <= 1);
}

/// A watchdog kept its timer for a released lease of 24 hours.
#[tokio::test(start_paused = true)]
async fn manager_dropped_leaves_no_task() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let before = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let g = locks.acquire("k").lease(24 * 3600 * SECOND).await.unwrap();
    g.release().await.unwrap();
    sleep(60 * SECOND).await;
    assert!(locks.snapshot().is_idle());
    drop(locks);
    sleep(3600 * SECOND).await;
    let after = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert_eq!(before, after);
}

/// Each of many waiters on an unavailable backend made its own last attempt.
#[tokio::test(start_paused = true)]
async fn last_attempts_of_many_waiters_make_no_storm() {
    let wire = Simulated::new(MS);
    wire.down(Some(Fault::Refused));
    let locks = manager_on(&wire);
    for _ in 0..400 {
        let l = locks.clone();
        tokio::spawn(async move { drop(l.acquire("k").wait(3 * SECOND).await) });
        sleep(25 * MS).await;
    }
    let tries = wire.sent(Command::Acquire);
    assert!(tries <= 30, "{tries} tries in 10 s");
}

/// The task that finishes a dropped attempt has no reply yet, so `no_wait` was rejected
/// as unavailable.
#[tokio::test(start_paused = true)]
async fn no_wait_behind_dropped_acquire_gets_its_reply() {
    let wire = Simulated::new(10 * MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let held = there.acquire("busy").await.unwrap();
    for key in ["busy", "free"] {
        let mut abandoned = Box::pin(locks.acquire(key).into_future());
        assert!(poll!(&mut abandoned).is_pending());
        drop(abandoned);
        let outcome = locks.acquire(key).no_wait().await;
        match key {
            "busy" => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy),
            _ => drop(outcome.unwrap()),
        }
    }
    drop(held);
}

/// A remote waiter acquires the key when the backend recovers: it need not wait up to 1 s for the
/// next scheduled retry of the release.
#[tokio::test(start_paused = true)]
async fn failed_release_is_resent_after_recovery() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let guard = locks.acquire("k").await.unwrap();
    wire.down(Some(Fault::Refused));
    drop(guard);
    let waiter = tokio::spawn(there.acquire("k").wait(20 * SECOND).into_future());
    // By now the release was sent five times, last at 1.5 s; the next retry is due 1 s later.
    sleep(1_900 * MS).await;
    assert!(!waiter.is_finished());
    wire.down(None);
    let start = Instant::now();
    drop(waiter.await.unwrap().unwrap());
    assert!(start.elapsed() < 20 * MS, "{:?}", start.elapsed());
}

/// An older ticket overtook `no_wait` in an empty queue.
#[tokio::test(start_paused = true)]
async fn no_wait_beside_acquire_of_keys_ends_at_once() {
    let wire = Simulated::new(10 * MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let b = there.acquire("a").await.unwrap();
    // Its ticket is older than that of `no_wait`, but it waits for "a" first.
    let l = locks.clone();
    let old = tokio::spawn(async move {
        let g = l.acquire(["a", "k"]).await.unwrap();
        sleep(600 * SECOND).await;
        drop(g);
    });
    sleep(100 * MS).await;
    let first = locks.acquire("k").await.unwrap();
    sleep(150 * MS).await;
    drop(b);
    sleep(19 * MS).await;
    drop(first); // the lane is returning
    sleep(Duration::from_micros(500)).await;
    let start = Instant::now();
    let outcome = timeout(3000 * SECOND, locks.acquire("k").no_wait()).await;
    drop(outcome.expect("an outcome"));
    assert!(start.elapsed() < SECOND);
    old.await.unwrap();
}
