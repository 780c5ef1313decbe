//! `no_wait` ends within one response timeout + 10 ms in every state of the lane, and makes an attempt.

use std::pin::Pin;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::manager::AcquireFuture;
use tower_lock::{Error, ErrorKind, LockGuard, LockKeys, LockManager};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::other_runtime::current_thread;
use crate::support::simulated::{Command, Fault, Simulated};

/// The time for a command without a reply over the simulated wire.
const RESPONSE: Duration = Duration::from_millis(501);

fn hang(wire: &Simulated) {
    wire.down(Some(Fault::CommandLost));
}

/// Makes one attempt, which must end in time.
async fn in_time(locks: &LockManager) -> Result<LockGuard, Error> {
    keys_in_time(locks, ["k"]).await
}

/// Makes one attempt for each of several keys, which together must end in time.
async fn keys_in_time(locks: &LockManager, keys: impl Into<LockKeys>) -> Result<LockGuard, Error> {
    let start = Instant::now();
    let outcome = timeout(60 * SECOND, locks.acquire(keys).no_wait()).await;
    let took = start.elapsed();
    assert!(took <= RESPONSE + 10 * MS, "took {took:?}");
    outcome.expect("within a minute")
}

async fn is_unavailable_in_time(locks: &LockManager) {
    let error = in_time(locks).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// Queues an acquire.
async fn queued(locks: &LockManager) -> Pin<Box<AcquireFuture>> {
    let mut waiter = Box::pin(locks.acquire("k").wait_forever().into_future());
    for _ in 0..5 {
        assert!(poll!(&mut waiter).is_pending());
        sleep(MS).await;
    }
    waiter
}

#[tokio::test(start_paused = true)]
async fn no_wait_on_idle_lane_ends_in_time() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    hang(&wire);
    is_unavailable_in_time(&locks).await;
}

#[tokio::test(start_paused = true)]
async fn no_wait_held_elsewhere_ends_in_time() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let _held = there.acquire("k").await.unwrap();
    hang(&wire);
    is_unavailable_in_time(&here).await;
}

#[tokio::test(start_paused = true)]
async fn no_wait_during_release_ends_in_time() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let held = locks.acquire("k").await.unwrap();
    hang(&wire);
    drop(held);
    sleep(MS).await;
    assert_eq!(wire.sent(Command::Release), 1);
    is_unavailable_in_time(&locks).await;
}

/// The release waits for the reply to the renewal, and the attempt for the release.
#[tokio::test(start_paused = true)]
async fn no_wait_during_renewal_ends_in_time() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let held = locks.acquire("k").await.unwrap();
    hang(&wire);
    while wire.sent(Command::Renew) == 0 {
        sleep(MS).await;
    }
    // The hand-off budget has ended, so the lease does not stay in this process.
    drop(held);
    is_unavailable_in_time(&locks).await;
}

#[tokio::test(start_paused = true)]
async fn no_wait_during_release_or_keep_ends_in_time() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let held = locks.acquire("k").await.unwrap();
    let waiter = queued(&locks).await;
    sleep(200 * MS).await;
    hang(&wire);
    drop(held);
    sleep(MS).await;
    assert_eq!(wire.sent(Command::ReleaseOrKeep), 1);
    drop(waiter);
    is_unavailable_in_time(&locks).await;
}

#[tokio::test(start_paused = true)]
async fn no_wait_behind_waiter_during_keep_ends_in_time() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let held = locks.acquire("k").await.unwrap();
    let _waiter = queued(&locks).await;
    sleep(200 * MS).await;
    hang(&wire);
    drop(held);
    sleep(MS).await;
    let error = in_time(&locks).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // A plain release has followed the one without a reply.
    sleep(RESPONSE).await;
    assert!(wire.sent(Command::Release) > 0);
    is_unavailable_in_time(&locks).await;
}

#[tokio::test(start_paused = true)]
async fn no_wait_behind_contender_ends_in_time() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let _held = there.acquire("k").await.unwrap();
    let _waiter = queued(&here).await;
    hang(&wire);
    // Covers several attempts of the contender: before, during and after each.
    for _ in 0..50 {
        in_time(&here).await.unwrap_err();
        sleep(73 * MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_wait_behind_first_attempt_ends_in_time() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    hang(&wire);
    let waiter = tokio::spawn(locks.acquire("k").into_future());
    sleep(400 * MS).await;
    is_unavailable_in_time(&locks).await;
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn no_wait_after_dropped_attempt_ends_in_time() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    hang(&wire);
    let waiter = tokio::spawn(locks.acquire("k").into_future());
    sleep(100 * MS).await;
    waiter.abort();
    is_unavailable_in_time(&locks).await;
}

/// An outcome that the contender received before the store hung does not apply to this caller.
#[tokio::test(start_paused = true)]
async fn no_wait_after_last_waiter_left_is_not_busy() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let _held = there.acquire("k").await.unwrap();
    let waiter = queued(&here).await;
    hang(&wire);
    let before = wire.sent(Command::Acquire);
    while wire.sent(Command::Acquire) == before {
        sleep(MS).await;
    }
    drop(waiter);
    is_unavailable_in_time(&here).await;
}

#[tokio::test(start_paused = true)]
async fn no_wait_after_last_waiter_left_acquires_free_key() {
    let wire = Simulated::new(MS).without_hints();
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let held = there.acquire("k").await.unwrap();
    let waiter = queued(&here).await;
    held.release().await.unwrap();
    drop(waiter);
    let guard = in_time(&here).await.unwrap();
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn no_wait_after_last_waiter_left_attempts_once() {
    let wire = Simulated::new(MS).without_hints();
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let _held = there.acquire("k").await.unwrap();
    let waiter = queued(&here).await;
    drop(waiter);
    let before = wire.sent(Command::Acquire);
    let error = in_time(&here).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(wire.sent(Command::Acquire) > before);
}

/// The attempt for a waiter that left is in flight. Its reply, or a later attempt, serves the caller.
#[tokio::test(start_paused = true)]
async fn no_wait_during_abandoned_attempt_acquires_free_key() {
    let wire = Simulated::new(20 * MS).without_hints();
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let held = there.acquire("k").await.unwrap();
    let mut waiter = Box::pin(here.acquire("k").wait_forever().into_future());
    while wire.sent(Command::Acquire) < 2 {
        assert!(poll!(&mut waiter).is_pending());
        sleep(MS).await;
    }
    held.release().await.unwrap();
    let before = wire.sent(Command::Acquire);
    while wire.sent(Command::Acquire) == before {
        assert!(poll!(&mut waiter).is_pending());
        sleep(MS).await;
    }
    drop(waiter);
    let guard = in_time(&here).await.unwrap();
    assert!(guard.is_held());
}

/// The first waiter of the other process has the next turn.
#[tokio::test(start_paused = true)]
async fn no_wait_while_lane_yields_ends_in_time() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    for hangs in [false, true] {
        let held = here.acquire("k").await.unwrap();
        let waiter = queued(&there).await;
        held.release().await.unwrap();
        if hangs {
            hang(&wire);
        }
        let before = wire.sent(Command::Acquire);
        let error = in_time(&here).await.unwrap_err();
        let kind = if hangs {
            ErrorKind::Unavailable
        } else {
            ErrorKind::Busy
        };
        assert_eq!(error.kind(), kind);
        assert_eq!(wire.sent(Command::Acquire), before + 1);
        drop(waiter.await.unwrap().release().await);
    }
}

/// The store hangs at each of the keys, and the replies before that take most of the time.
#[tokio::test(start_paused = true)]
async fn no_wait_for_several_keys_ends_in_time() {
    let keys = ["a", "b", "c", "d"];
    for answered in 0..keys.len() {
        let wire = Simulated::new(80 * MS);
        let locks = manager_on(&wire);
        let hangs = async {
            while wire.sent(Command::Acquire) <= answered {
                sleep(MS).await;
            }
            hang(&wire);
            std::future::pending::<()>().await;
        };
        if answered == 0 {
            hang(&wire);
        }
        let error = tokio::select! {
            outcome = keys_in_time(&locks, keys) => outcome.unwrap_err(),
            () = hangs => unreachable!("pending"),
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{answered} answered");
    }
}

/// Nothing drives the runtime that was set.
#[tokio::test(start_paused = true)]
async fn no_wait_with_stalled_background_ends_in_time() {
    let background = current_thread();
    let wire = Simulated::new(MS);
    let locks = LockManager::builder(wire.clone()).runtime(background.handle().clone());
    let locks = locks.build().unwrap();
    for _ in 0..2 {
        let error = in_time(&locks).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = keys_in_time(&locks, ["a", "b"]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        hang(&wire);
    }
    background.shutdown_background();
}
