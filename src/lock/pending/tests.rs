use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use tokio::time::sleep;

use crate::LockManager;
use crate::lock::tests::{MS, SECOND, Slow};

#[tokio::test(start_paused = true)]
async fn guard_outlives_deadline_of_its_acquire() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let next = locks.acquire("k").wait(SECOND).into_future();
    let (next, ()) = tokio::join!(next, async { drop(first) });
    let next = next.expect("handed off");
    sleep(2 * SECOND).await;
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn unpolled_acquire_enters_again_after_lost_grant() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let mut next = locks.acquire("k").max_hold(SECOND).into_future();
    assert!((&mut next).now_or_never().is_none());
    drop(first);
    sleep(2 * SECOND).await;
    let next = next.await.expect("a fresh grant");
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn single_attempt_sends_one_command() {
    let backend = Slow {
        attempt_takes: MS,
        ..Slow::default()
    };
    let [one, other] = [backend.clone(), backend.clone()].map(|backend| {
        let locks = LockManager::builder(backend).build();
        locks.expect("defaults")
    });
    let _guard = one.acquire("k").await.expect("free");
    backend.attempts.store(0, Ordering::SeqCst);
    let error = other.acquire("k").no_wait().await.expect_err("held");
    assert!(error.is_busy());
    assert_eq!(backend.attempts.load(Ordering::SeqCst), 1);
}
