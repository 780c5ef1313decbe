//! An acquire of several keys has one longest hold and one deadline.

use std::hash::{BuildHasher as _, RandomState};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
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

fn random(bound: u32) -> u32 {
    u32::try_from(RandomState::new().hash_one(0) % u64::from(bound)).unwrap()
}

/// An acquire that is granted too late has held nothing, so it has lost nothing.
#[tokio::test(start_paused = true)]
async fn groups_polled_at_random_are_never_lost() {
    for locks in managers(30 * SECOND) {
        let callers = (0..8).map(|_| async {
            let mut granted = 0;
            for _ in 0..300 {
                let keys = [random(3), random(3)].map(|it| format!("k{it}"));
                let acquire = locks.acquire(keys).wait(random(20) * MS);
                let mut acquire = Box::pin(acquire.into_future());
                let outcome = loop {
                    if let Poll::Ready(outcome) = poll!(&mut acquire) {
                        break outcome;
                    }
                    sleep(Duration::from_micros(random(8_000).into())).await;
                };
                match outcome {
                    Ok(guard) => {
                        assert!(guard.is_held());
                        granted += 1;
                        sleep(random(4) * MS).await;
                    }
                    Err(error) => assert_ne!(error.kind(), ErrorKind::Lost, "{error:?}"),
                }
            }
            granted
        });
        let granted: u32 = join_all(callers).await.into_iter().sum();
        assert!(granted > 100, "{granted}");
    }
}
