//! A runtime that stops delays the waiters of another runtime at most until its leases expire.

use std::thread;

use futures_util::poll;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::LockManager;

use super::stopped::{
    Fate, LATE, LEASE, Other, POLL, WAIT, current_thread, in_each_case, is_served, is_served_by,
    polled, queued,
};
use crate::support::engine::MS;

/// The holder's guard still exists, so its lock is renewed.
#[test]
fn stopped_holder_keeps_its_lock() {
    in_each_case(|fate, here, there| {
        let locks = here.clone();
        let other = Other::after(fate, async move { locks.acquire("k").await.unwrap() });
        for locks in [here, there] {
            let late = locks.acquire("k").wait(2 * LEASE).into_future();
            assert!(current_thread().block_on(late).unwrap_err().is_busy());
        }
        // The guard is dropped outside of any runtime.
        drop(other);
        is_served(here, "k", POLL);
    });
}

/// Queues behind the work of another runtime, which then stops with the output of that work, and expects a grant.
fn is_served_behind<T: Send + 'static>(
    fate: Fate,
    here: &LockManager,
    work: impl Future<Output = T> + Send + 'static,
) {
    let (works, is_working) = oneshot::channel();
    let (waits, is_waiting) = oneshot::channel::<()>();
    let other = thread::spawn(move || {
        Other::after(fate, async move {
            let kept = work.await;
            works.send(()).unwrap();
            is_waiting.await.unwrap();
            kept
        })
    });
    let driven = current_thread();
    let acquire = driven.block_on(async {
        is_working.await.unwrap();
        polled(here.acquire("k").wait(WAIT), 1).await
    });
    waits.send(()).unwrap();
    let _other = other.join().unwrap();
    let start = Instant::now();
    let guard = driven.block_on(acquire.0).unwrap();
    let waited = start.elapsed();
    assert!(guard.is_held());
    assert!(waited <= LEASE + POLL + LATE, "served after {waited:?}");
}

/// Another process holds the key. The task that contends for it started in the other runtime, for a
/// waiter whose deadline passes before the key is free.
#[test]
fn waiter_is_served_after_stopped_contender() {
    in_each_case(|fate, here, there| {
        let third = current_thread();
        let held = third.block_on(there.acquire("k").lease(LEASE).into_future());
        let _held = held.unwrap();
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            queued(locks.acquire("k").wait(LEASE / 2)).await
        });
        is_served(here, "k", LEASE + POLL);
    });
}

/// The waiter queued behind a contender that was running.
#[test]
fn queued_waiter_is_served_after_stopped_contender() {
    in_each_case(|fate, here, there| {
        let third = current_thread();
        let held = third.block_on(there.acquire("k").lease(LEASE).into_future());
        let _held = held.unwrap();
        let locks = here.clone();
        is_served_behind(fate, here, async move {
            queued(locks.acquire("k").wait(LEASE / 2)).await
        });
    });
}

#[test]
fn waiter_times_out_after_stop_of_first_runtime() {
    in_each_case(|fate, here, there| {
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            let kept = locks.acquire("k").lease(20 * LEASE).await.unwrap();
            sleep(10 * MS).await;
            kept
        });
        let driven = current_thread();
        for locks in [here, there] {
            let start = Instant::now();
            let late = driven.block_on(locks.acquire("k").wait(LEASE / 2).into_future());
            assert!(late.unwrap_err().is_busy());
            let waited = start.elapsed();
            assert!(waited >= LEASE / 2 - 20 * MS && waited <= LEASE / 2 + LATE);
        }
    });
}

/// The other runtime stopped after some number of turns of its tasks, at any point between acquiring and
/// releasing the key.
#[test]
fn release_in_stopped_runtime_frees_key() {
    thread::scope(|scope| {
        for turns in 0..4 {
            scope.spawn(move || release_frees_key_after(turns));
        }
    });
}

fn release_frees_key_after(turns: u32) {
    in_each_case(|fate, here, _| {
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            drop(locks.acquire("k").await.unwrap());
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        });
        is_served(here, "k", LEASE + POLL);
    });
}

/// A release is in flight in the other runtime, and a waiter has terms that match no lease of its lane.
#[test]
fn release_in_stopped_runtime_grants_fixed_lease() {
    in_each_case(|fate, here, _| {
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            drop(locks.acquire("k").await.unwrap());
            tokio::task::yield_now().await;
        });
        let acquire = here.acquire("k").lease(LEASE).wait(WAIT).into_future();
        is_served_by(LEASE + POLL, acquire);
    });
}

/// The contender of the other runtime no longer has a waiter.
#[test]
fn key_left_by_stopped_contender_is_free() {
    in_each_case(|fate, here, there| {
        let third = current_thread();
        let held = third.block_on(there.acquire("k").into_future()).unwrap();
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            drop(queued(locks.acquire("k")).await);
        });
        third.block_on(held.release()).unwrap();
        third.block_on(async {
            // The release may have transferred the key to the place of the stopped runtime, which this attempt leaves.
            let once = timeout(WAIT, here.acquire("k").no_wait()).await;
            drop(once.expect("one attempt is made"));
        });
        is_served(here, "k", POLL);
    });
}

/// The first attempt in the other runtime is in flight, and is no longer polled or has been dropped.
fn first_attempt_frees_key(drops: bool) {
    in_each_case(|fate, here, _| {
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            let mut kept = Some(Box::pin(locks.acquire("k").wait(LEASE / 2).into_future()));
            // The memory backend grants at once, and the guard is dropped.
            if let Some(acquire) = &mut kept
                && (poll!(acquire).is_ready() || drops)
            {
                kept = None;
            }
            kept
        });
        is_served(here, "k", LEASE + POLL);
    });
}

#[test]
fn first_attempt_in_stopped_runtime_frees_key() {
    first_attempt_frees_key(false);
}

#[test]
fn dropped_attempt_in_stopped_runtime_frees_key() {
    first_attempt_frees_key(true);
}
