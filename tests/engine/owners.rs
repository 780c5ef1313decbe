//! Concurrent acquires of one owner on one key are granted together.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::{ErrorKind, LockManager};

use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Simulated, managers};

/// The time for a command over the simulated wire and the timers of the engine.
const ROUND_TRIP: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn two_acquires_of_one_owner_share_free_key() {
    for locks in managers(30 * SECOND) {
        let owner = locks.new_owner();
        let acquire = || locks.acquire("k").owner(owner).wait(SECOND).into_future();
        let start = Instant::now();
        let (first, second) = tokio::join!(acquire(), acquire());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(start.elapsed() <= ROUND_TRIP);
        assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
        assert_eq!(first.fencing_token(), second.fencing_token());
        drop(first);
        assert!(second.is_held());
        second.release().await.unwrap();
        assert!(!locks.is_locked("k").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn three_acquires_of_one_owner_share_free_key() {
    for locks in managers(30 * SECOND) {
        let owner = locks.new_owner();
        let acquire = || locks.acquire("k").owner(owner).wait(SECOND).into_future();
        let start = Instant::now();
        let guards = tokio::try_join!(acquire(), acquire(), acquire()).unwrap();
        assert!(start.elapsed() <= ROUND_TRIP);
        assert_eq!(guards.0.hold_count(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn no_wait_of_owner_shares_its_first_attempt() {
    for locks in managers(30 * SECOND) {
        let owner = locks.new_owner();
        let first = locks.acquire("k").owner(owner).into_future();
        let second = locks.acquire("k").owner(owner).no_wait().into_future();
        let (first, second) = tokio::try_join!(first, second).unwrap();
        assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn two_acquires_of_one_owner_share_expired_key() {
    let wire = Simulated::new(MS);
    let there = LockManager::builder(wire.another_wire()).build().unwrap();
    let here = LockManager::builder(wire).build().unwrap();
    let held = there.acquire("k").await.unwrap();
    let owner = here.new_owner();
    let acquire = || {
        here.acquire("k")
            .owner(owner)
            .wait(2 * SECOND)
            .into_future()
    };
    let both = tokio::spawn(futures_util::future::try_join(acquire(), acquire()));
    sleep(100 * MS).await;
    held.release().await.unwrap();
    let released = Instant::now();
    let (first, second) = both.await.unwrap().unwrap();
    assert!(released.elapsed() <= ROUND_TRIP);
    assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn owner_passes_other_queued_between() {
    for locks in managers(30 * SECOND) {
        let held = locks.acquire("k").await.unwrap();
        let owner = locks.new_owner();
        let mut tasks = Vec::new();
        for owner in [owner, locks.new_owner(), owner] {
            let acquire = locks.acquire("k").owner(owner).wait(10 * SECOND);
            tasks.push(tokio::spawn(acquire.into_future()));
            tokio::task::yield_now().await;
        }
        let (last, other) = (tasks.pop().unwrap(), tasks.pop().unwrap());
        let first = tasks.pop().unwrap();
        sleep(10 * MS).await;
        drop(held);
        let released = Instant::now();
        let (first, last) = (first.await.unwrap().unwrap(), last.await.unwrap().unwrap());
        assert!(released.elapsed() <= ROUND_TRIP);
        assert_eq!((first.hold_count(), last.hold_count()), (2, 2));
        sleep(SECOND).await;
        assert!(!other.is_finished());
        drop(first);
        sleep(SECOND).await;
        assert!(!other.is_finished(), "the owner holds it once more");
        drop(last);
        let other = other.await.unwrap().unwrap();
        assert_eq!(other.hold_count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn shared_grant_keeps_reentrancy_limit() {
    for locks in managers(30 * SECOND) {
        let held = locks.acquire("k").await.unwrap();
        let owner = locks.new_owner();
        let acquire = || locks.acquire("k").owner(owner).wait(SECOND).into_future();
        let limit = 64;
        let tasks: Vec<_> = (0..=limit).map(|_| tokio::spawn(acquire())).collect();
        sleep(10 * MS).await;
        drop(held);
        let (mut guards, mut errors) = (Vec::new(), Vec::new());
        for task in tasks {
            match task.await.unwrap() {
                Ok(guard) => guards.push(guard),
                Err(error) => errors.push(error.kind()),
            }
        }
        assert_eq!(guards.len(), limit);
        assert_eq!(errors, [ErrorKind::ReentrancyLimit]);
    }
}
