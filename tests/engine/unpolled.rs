//! An acquire that is no longer polled delays other callers at most until its own deadline.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, interval, sleep, timeout};
use tower_lock::manager::{Acquire, AcquireFuture};
use tower_lock::{ErrorKind, LockManager, Memory};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Command, Fault, Simulated};

/// The response timeout of a command.
const RESPONSE: Duration = Duration::from_millis(500);
/// The time after which an unpolled command continues in a task.
const TAKE_OVER: Duration = Duration::from_millis(10);
/// The time for a few commands over the simulated wire and the timers of the engine.
const ROUND_TRIPS: Duration = Duration::from_millis(15);

/// Polls an acquire once, which must leave it pending.
async fn polled_once(acquire: Acquire) -> Pin<Box<AcquireFuture>> {
    let mut acquire = Box::pin(acquire.into_future());
    assert!(poll!(&mut acquire).is_pending());
    acquire
}

#[tokio::test(start_paused = true)]
async fn unpolled_first_attempt_frees_key_at_deadline() {
    let locks = manager_on(&Simulated::new(MS));
    let start = Instant::now();
    let unpolled = polled_once(locks.acquire("k").wait(SECOND)).await;
    let next = locks.acquire("k").wait(30 * SECOND).await.unwrap();
    assert!(start.elapsed() <= SECOND + ROUND_TRIPS, "{start:?}");
    assert!(next.is_held());
    drop(unpolled.await.unwrap_err());
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn unpolled_writer_delays_readers_until_deadline() {
    let locks = LockManager::in_memory();
    let _reader = locks.acquire("k").shared().await.unwrap();
    let start = Instant::now();
    let _unpolled = polled_once(locks.acquire("k").wait(SECOND)).await;
    let later = locks.acquire("k").shared().wait(30 * SECOND).await.unwrap();
    assert!(
        start.elapsed() <= SECOND + ROUND_TRIPS,
        "{:?}",
        start.elapsed()
    );
    assert!(later.is_held());
}

#[tokio::test(start_paused = true)]
async fn unpolled_first_attempt_frees_key_elsewhere() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    // The command takes effect, but the caller does not read its reply.
    let mut unpolled = polled_once(here.acquire("k").wait(SECOND)).await;
    let start = Instant::now();
    sleep(2 * MS).await;
    assert!(poll!(&mut unpolled).is_pending());
    let next = there.acquire("k").wait(30 * SECOND).await.unwrap();
    assert!(start.elapsed() <= SECOND + ROUND_TRIPS);
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn unpolled_failed_attempt_is_taken_over() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    wire.fail_next(Command::Acquire, Fault::Refused);
    let _unpolled = polled_once(locks.acquire("k").no_wait()).await;
    let start = Instant::now();
    let next = locks.acquire("k").wait(30 * SECOND).await.unwrap();
    // The first backoff step is 50 ms with jitter.
    assert!(start.elapsed() <= TAKE_OVER + 75 * MS + ROUND_TRIPS);
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn unpolled_rejected_attempt_is_taken_over() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let held = there.acquire("k").await.unwrap();
    let _unpolled = polled_once(here.acquire("k").wait(100 * MS)).await;
    let waiter = tokio::spawn(here.acquire("k").wait(30 * SECOND).into_future());
    sleep(200 * MS).await;
    held.release().await.unwrap();
    let released = Instant::now();
    let next = waiter.await.unwrap().unwrap();
    assert!(released.elapsed() <= TAKE_OVER + ROUND_TRIPS);
    assert!(next.is_held());
}

/// In a runtime with several threads, the acquire itself drives its first attempt, until home takes it over.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unpolled_attempt_in_place_is_taken_over() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let held = there.acquire("k").await.unwrap();
    let _unpolled = polled_once(here.acquire("k").wait(50 * MS)).await;
    let waiter = tokio::spawn(here.acquire("k").wait(30 * SECOND).into_future());
    sleep(100 * MS).await;
    held.release().await.unwrap();
    let released = Instant::now();
    let next = waiter.await.unwrap().unwrap();
    let waited = released.elapsed();
    assert!(next.is_held());
    // Without a reply, the attempt would end 400 ms later.
    assert!(waited <= RESPONSE / 2, "{waited:?}");
}

/// A task takes over the first attempt, whose outcome also applies to the caller behind it.
#[tokio::test(start_paused = true)]
async fn no_wait_behind_unpolled_attempt_ends_in_time() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let free = polled_once(here.acquire("free").wait(30 * SECOND)).await;
    let _held = there.acquire("held").await.unwrap();
    let held = polled_once(here.acquire("held").wait(30 * SECOND)).await;
    for key in ["free", "held"] {
        let start = Instant::now();
        let outcome = timeout(SECOND, here.acquire(key).no_wait()).await;
        let error = outcome.expect("within a second").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(start.elapsed() <= TAKE_OVER + ROUND_TRIPS);
    }
    drop((free, held));
}

#[tokio::test(start_paused = true)]
async fn unpolled_no_wait_blocks_one_response_time() {
    let wire = Simulated::new(MS);
    for fault in [None, Some(Fault::CommandLost), Some(Fault::AnswerLost)] {
        let locks = manager_on(&wire);
        if let Some(fault) = fault {
            wire.fail_next(Command::Acquire, fault);
        }
        let start = Instant::now();
        let _unpolled = polled_once(locks.acquire("k").no_wait()).await;
        let next = locks.acquire("k").wait(30 * SECOND).await.unwrap();
        // A lost command is followed by the first backoff step, 50 ms with jitter.
        let limit = RESPONSE + TAKE_OVER + 75 * MS + ROUND_TRIPS;
        assert!(start.elapsed() <= limit, "{fault:?}: {:?}", start.elapsed());
        next.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn unclaimed_handoff_is_released_at_deadline() {
    for locks in [LockManager::in_memory(), manager_on(&Simulated::new(MS))] {
        let held = locks.acquire("k").await.unwrap();
        let start = Instant::now();
        let unpolled = polled_once(locks.acquire("k").wait(SECOND)).await;
        let waiter = tokio::spawn(locks.acquire("k").wait(30 * SECOND).into_future());
        sleep(10 * MS).await;
        drop(held);
        let next = waiter.await.unwrap().unwrap();
        assert!(start.elapsed() <= SECOND + ROUND_TRIPS);
        drop(unpolled.await.unwrap_err());
        assert!(next.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn unclaimed_grant_of_task_is_released_at_deadline() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let held = there.acquire("k").await.unwrap();
    let start = Instant::now();
    let mut unpolled = polled_once(here.acquire("k").wait(SECOND)).await;
    while here.snapshot().waiting == 0 {
        sleep(MS).await;
        assert!(poll!(&mut unpolled).is_pending());
    }
    sleep(10 * MS).await;
    held.release().await.unwrap();
    let next = there.acquire("k").wait(30 * SECOND).await.unwrap();
    assert!(start.elapsed() <= SECOND + ROUND_TRIPS);
    assert!(next.is_held());
    drop(unpolled.await.unwrap_err());
}

#[tokio::test(start_paused = true)]
async fn unclaimed_grant_leaves_nothing_behind() {
    let memory = Memory::new();
    let wire = Simulated::new(MS);
    let in_memory = LockManager::builder(memory).build().unwrap();
    for locks in [in_memory, manager_on(&wire)] {
        let held = locks.acquire("k").await.unwrap();
        let _unpolled = polled_once(locks.acquire("k").wait(SECOND)).await;
        drop(held);
        sleep(SECOND + ROUND_TRIPS).await;
        assert!(!locks.is_locked("k").await.unwrap());
        assert!(locks.snapshot().is_idle(), "{:?}", locks.snapshot());
    }
}

#[tokio::test(start_paused = true)]
async fn many_unpolled_waiters_end_at_their_deadline() {
    for locks in [LockManager::in_memory(), manager_on(&Simulated::new(MS))] {
        let held = locks.acquire("k").await.unwrap();
        let start = Instant::now();
        let mut unpolled = Vec::new();
        for _ in 0..100 {
            unpolled.push(polled_once(locks.acquire("k").wait(SECOND)).await);
        }
        let waiter = tokio::spawn(locks.acquire("k").wait(30 * SECOND).into_future());
        sleep(10 * MS).await;
        drop(held);
        let next = waiter.await.unwrap().unwrap();
        assert!(start.elapsed() <= SECOND + ROUND_TRIPS);
        assert!(next.is_held());
    }
}

/// A `select!` whose other branch needs the key itself.
#[tokio::test(start_paused = true)]
async fn select_branch_does_not_block_other_branch() {
    let locks = manager_on(&Simulated::new(MS));
    let mut acquire = Box::pin(locks.acquire("k").wait(SECOND).into_future());
    let start = Instant::now();
    tokio::select! {
        biased;
        _ = &mut acquire => unreachable!("a command takes 2 ms"),
        () = std::future::ready(()) => {
            let inside = locks.acquire("k").wait(30 * SECOND).await.unwrap();
            assert!(start.elapsed() <= SECOND + ROUND_TRIPS);
            inside.release().await.unwrap();
        }
    }
    drop(acquire.await.unwrap_err());
}

/// A `select!` in a loop polls one future in all turns.
#[tokio::test(start_paused = true)]
async fn select_loop_keeps_position_in_queue() {
    for locks in [LockManager::in_memory(), manager_on(&Simulated::new(MS))] {
        let mut held = Some(locks.acquire("k").await.unwrap());
        let mut acquire = pin!(locks.acquire("k").wait(30 * SECOND).into_future());
        let mut ticks = interval(10 * MS);
        let (mut turn, mut later) = (0, None);
        let guard = loop {
            tokio::select! {
                biased;
                acquired = &mut acquire => break acquired.unwrap(),
                _ = ticks.tick() => turn += 1,
            }
            match turn {
                1 => later = Some(tokio::spawn(locks.acquire("k").into_future())),
                10 => held = None,
                _ => assert!(turn < 10, "the later waiter is granted first"),
            }
        };
        let later = later.unwrap();
        assert!(held.is_none() && guard.is_held() && !later.is_finished());
        guard.release().await.unwrap();
        assert!(later.await.unwrap().unwrap().is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn select_loop_keeps_deadline() {
    for locks in [LockManager::in_memory(), manager_on(&Simulated::new(MS))] {
        let _held = locks.acquire("k").await.unwrap();
        let mut acquire = pin!(locks.acquire("k").wait(SECOND).into_future());
        let mut ticks = interval(10 * MS);
        let (start, mut turns) = (Instant::now(), 0);
        let error = loop {
            tokio::select! {
                biased;
                acquired = &mut acquire => break acquired.unwrap_err(),
                _ = ticks.tick() => turns += 1,
            }
            assert!(start.elapsed() <= SECOND, "turn {turns}");
        };
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(start.elapsed() >= SECOND && turns >= 100, "{turns}");
    }
}
