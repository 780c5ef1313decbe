//! An acquire of several keys has one longest hold and one deadline.

use futures_util::poll;
use tokio::time::{Instant, sleep};
use tower_lock::{ErrorKind, LockManager, Memory};

use crate::support::engine::{MS, SECOND};
use crate::support::simulated::managers;

#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_grant_of_last_key() {
    for locks in managers(30 * SECOND) {
        let held = locks.acquire("b").await.unwrap();
        let group = locks.acquire(["a", "b"]).max_hold(SECOND).into_future();
        let group = tokio::spawn(group);
        sleep(800 * MS).await;
        drop(held);
        let group = group.await.unwrap().unwrap();
        let granted = Instant::now();
        sleep(900 * MS).await;
        assert!(group.is_held(), "lost before its longest hold");
        group.lost().await;
        let lasted = granted.elapsed();
        assert!(lasted >= SECOND - 5 * MS && lasted <= SECOND + 10 * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn max_hold_shorter_than_wait_of_last_key_holds() {
    for locks in managers(30 * SECOND) {
        let held = locks.acquire("c").await.unwrap();
        let group = locks.acquire(["a", "b", "c"]).max_hold(SECOND);
        let group = tokio::spawn(group.into_future());
        sleep(3 * SECOND).await;
        drop(held);
        let group = group.await.unwrap().unwrap();
        sleep(900 * MS).await;
        assert!(group.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn max_hold_of_group_ends_all_keys() {
    let memory = Memory::new();
    let here = LockManager::builder(memory.clone()).build().unwrap();
    let there = LockManager::builder(memory).build().unwrap();
    let held = here.acquire("b").await.unwrap();
    let group = here.acquire(["a", "b"]).max_hold(SECOND).into_future();
    let group = tokio::spawn(group);
    sleep(800 * MS).await;
    drop(held);
    let group = group.await.unwrap().unwrap();
    let granted = Instant::now();
    for key in ["a", "b"] {
        let next = there.acquire(key).wait(30 * SECOND).await.unwrap();
        let waited = granted.elapsed();
        assert!(waited >= SECOND - 5 * MS, "{key} was lost after {waited:?}");
        assert!(waited <= SECOND + 20 * MS, "{key} was held for {waited:?}");
        assert!(!group.is_held() && next.is_held());
    }
}

/// The first key is granted and picked up; the acquire is not polled while the second is held.
#[tokio::test(start_paused = true)]
async fn unpolled_group_frees_its_keys_at_deadline() {
    for locks in managers(30 * SECOND) {
        let _held = locks.acquire("b").await.unwrap();
        let start = Instant::now();
        let mut group = Box::pin(locks.acquire(["a", "b"]).wait(SECOND).into_future());
        while locks.snapshot().waiting == 0 {
            assert!(poll!(&mut group).is_pending());
            sleep(MS).await;
        }
        let next = locks.acquire("a").wait(30 * SECOND).await.unwrap();
        assert!(start.elapsed() <= SECOND + 15 * MS);
        drop(group.await.unwrap_err());
        assert!(next.is_held());
    }
}

/// All keys are granted in time, but the acquire is not polled again before its deadline. No lock was held, so none is lost.
#[tokio::test(start_paused = true)]
async fn group_polled_late_is_rejected_as_busy() {
    for locks in managers(30 * SECOND) {
        let held = locks.acquire("b").await.unwrap();
        let mut group = Box::pin(locks.acquire(["a", "b"]).wait(SECOND).into_future());
        while locks.snapshot().waiting == 0 {
            assert!(poll!(&mut group).is_pending());
            sleep(MS).await;
        }
        drop(held);
        sleep(2 * SECOND).await;
        assert_eq!(group.await.unwrap_err().kind(), ErrorKind::Busy);
        assert!(locks.acquire(["a", "b"]).await.unwrap().is_held());
    }
}
