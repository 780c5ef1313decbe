//! First attempts in flight count as waiters.

use futures_util::future::join_all;
use futures_util::poll;
use tokio::time::sleep;
use tower_lock::{Error, ErrorKind, LockGuard, LockManager, LockManagerBuilder, Memory};

use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Command, Simulated};

fn remote() -> (Simulated, LockManagerBuilder) {
    let wire = Simulated::new(MS);
    let builder = LockManager::builder(wire.clone());
    (wire, builder)
}

/// Returns how many of the outcomes are errors of this kind.
fn refused(outcomes: &[Result<LockGuard, Error>], kind: ErrorKind) -> usize {
    let errors = outcomes.iter().filter_map(|it| it.as_ref().err());
    errors.filter(|error| error.kind() == kind).count()
}

#[tokio::test(start_paused = true)]
async fn max_waiters_bounds_first_attempts_in_flight() {
    for limit in [1, 7] {
        let (wire, builder) = remote();
        let locks = builder.max_waiters(limit).build().unwrap();
        let acquires = (0..1000).map(|n| locks.acquire(format!("k{n}")).into_future());
        let outcomes = join_all(acquires).await;
        assert_eq!(wire.sent(Command::Acquire), limit);
        let errors = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let kinds: Vec<_> = errors.map(Error::kind).collect();
        assert_eq!(kinds, vec![ErrorKind::Overloaded; 1000 - limit]);
    }
}

#[tokio::test(start_paused = true)]
async fn max_waiters_bounds_no_wait_in_flight() {
    let (wire, builder) = remote();
    let locks = builder.max_waiters(1).build().unwrap();
    let acquires = ["a", "b", "c"].map(|key| locks.acquire(key).no_wait().into_future());
    let outcomes = join_all(acquires).await;
    assert_eq!(wire.sent(Command::Acquire), 1);
    assert!(outcomes[0].is_ok());
    for refused in &outcomes[1..] {
        let error = refused.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Overloaded);
    }
}

#[tokio::test(start_paused = true)]
async fn max_waiters_counts_waiter_of_other_key() {
    let (_wire, builder) = remote();
    let locks = builder.max_waiters(1).build().unwrap();
    let _held = locks.acquire("a").await.unwrap();
    let waiter = tokio::spawn(locks.acquire("a").into_future());
    sleep(10 * MS).await;
    let error = locks.acquire("b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    waiter.abort();
    sleep(MS).await;
    drop(locks.acquire("b").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn max_waiters_excludes_ended_first_attempts() {
    let (wire, builder) = remote();
    let locks = builder.max_waiters(1).build().unwrap();
    let there = LockManager::builder(wire.another_wire()).build().unwrap();
    let _held = there.acquire("held").await.unwrap();
    for round in 0..3 {
        drop(locks.acquire(format!("k{round}")).await.unwrap());
        let busy = locks.acquire("held").no_wait().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let late = locks.acquire("held").wait(20 * MS).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Busy);
        // A dropped attempt counts until it ends.
        let dropped = tokio::spawn(locks.acquire("dropped").into_future());
        tokio::task::yield_now().await;
        dropped.abort();
        sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn max_waiters_lets_owner_reenter() {
    let (_wire, builder) = remote();
    let locks = builder.max_waiters(1).build().unwrap();
    let held = locks.acquire("a").await.unwrap();
    let waiter = tokio::spawn(locks.acquire("a").into_future());
    sleep(10 * MS).await;
    let again = locks.acquire("a").owner(held.owner()).await.unwrap();
    assert_eq!(again.hold_count(), 2);
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn max_waiters_ignores_immediate_grants() {
    let builder = LockManager::builder(Memory::new());
    let locks = builder.max_waiters(1).build().unwrap();
    let acquires = (0..1000).map(|n| locks.acquire(format!("k{n}")).into_future());
    let outcomes = join_all(acquires).await;
    assert!(outcomes.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn max_waiters_per_key_counts_first_attempt_in_flight() {
    for limit in [1, 3] {
        let (_wire, builder) = remote();
        let locks = builder.max_waiters_per_key(limit).build().unwrap();
        let acquire = || locks.acquire("k").wait(100 * MS).into_future();
        let outcomes = join_all((0..10).map(|_| acquire())).await;
        let refused = |kind| refused(&outcomes, kind);
        assert_eq!(refused(ErrorKind::TooManyWaiters), 10 - limit);
        assert_eq!(refused(ErrorKind::Busy), limit - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn max_waiters_per_key_bounds_no_wait_in_flight() {
    let (_wire, builder) = remote();
    let locks = builder.max_waiters_per_key(1).build().unwrap();
    let acquire = || locks.acquire("k").no_wait().into_future();
    let (first, second) = tokio::join!(acquire(), acquire());
    assert!(first.is_ok());
    assert_eq!(second.unwrap_err().kind(), ErrorKind::TooManyWaiters);
}

#[tokio::test(start_paused = true)]
async fn max_waiters_per_key_bounds_permits() {
    // The reply to a first attempt is immediate, or takes a round trip.
    for builder in [LockManager::builder(Memory::new()), remote().1] {
        let locks = builder.max_waiters_per_key(3).build().unwrap();
        let _held = locks.acquire("k").permits(1).await.unwrap();
        let acquire = |_| locks.acquire("k").permits(1).wait(100 * MS).into_future();
        let outcomes = join_all((0..10).map(acquire)).await;
        assert_eq!(refused(&outcomes, ErrorKind::TooManyWaiters), 7);
        assert_eq!(refused(&outcomes, ErrorKind::PermitsExhausted), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn max_waiters_per_key_bounds_readers() {
    let builder = LockManager::builder(Memory::new());
    let locks = builder.max_waiters_per_key(3).build().unwrap();
    let _reader = locks.acquire("k").shared().await.unwrap();
    let mut writer = Box::pin(locks.acquire("k").into_future());
    assert!(poll!(&mut writer).is_pending());
    let acquire = |_| locks.acquire("k").shared().wait(100 * MS).into_future();
    let outcomes = join_all((0..10).map(acquire)).await;
    assert_eq!(refused(&outcomes, ErrorKind::TooManyWaiters), 8);
    assert_eq!(refused(&outcomes, ErrorKind::Busy), 2);
}
