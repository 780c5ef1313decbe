//! Replies to a release.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::{BackendError, Erased};
use crate::lock::clock::Span;
use crate::lock::engine::options::Options;
use crate::lock::engine::release_queue::ReleaseQueue;
use crate::lock::lease::Lease;
use crate::lock::tests::{MS, RENEWED, SECOND, Slow, TOKENS, claim, key, number};
use crate::observe::Via;
use crate::{ErrorKind, LockManager};

#[test]
fn failed_release_dropped_by_lane_is_resolved() {
    let mut effects = Effects::at(Moment::now());
    let (lease, ttl) = (number(1), Span::new(Duration::from_secs(7)));
    let error = Err(BackendError::unknown("no reply"));
    let (outgoing, mut lane) = (Outgoing { lease, ttl }, Lane::default());
    settle(outgoing, &mut lane, error, &mut effects);
    let Work::ReleaseGranted(outgoing) = effects.work.remove(0) else {
        panic!("not resolved");
    };
    assert_eq!((outgoing.lease, outgoing.ttl), (lease, ttl));
}

/// Returns the lane of a lock whose release was sent, and is reported.
fn returning(now: Moment) -> Lane {
    let (mut lane, mut effects) = (Lane::default(), Effects::at(now));
    let claim = claim(1, RENEWED);
    let lease = Lease::new(number(1), 100, TOKENS, RENEWED, now);
    let grant = lane.hold(&key(), lease, Via::Backend, &claim, now);
    let report = Some(oneshot::channel().0);
    lane.release(&grant, 1, report, &mut effects);
    assert!(lane.take_return(now, now).is_some());
    lane
}

#[test]
fn resent_release_of_free_key_succeeds() {
    let now = Moment::now();
    let lost = Err(ErrorKind::Lost);
    for (resent, after, expected) in [
        (true, Duration::ZERO, Ok(())),
        (false, Duration::ZERO, lost),
        (true, RENEWED.ttl.get(), lost),
    ] {
        let mut lane = returning(now);
        if resent {
            lane.return_is_resent(number(1));
        }
        let outgoing = Outgoing {
            lease: number(1),
            ttl: RENEWED.ttl,
        };
        let mut effects = Effects::at(now + after);
        let not_held = Ok(Released::NotHeld);
        settle(outgoing, &mut lane, not_held, &mut effects);
        let (_report, outcome) = effects.reports.remove(0);
        assert_eq!(outcome.map_err(|error| error.kind()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn release_after_idle_time_starts_task_again() {
    let locks = LockManager::builder(Slow::default()).build();
    let locks = locks.expect("defaults");
    for _ in 0..3 {
        let guard = locks.acquire("k").await.expect("free");
        guard.release().await.expect("held");
        sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn releases_of_many_keys_take_one_round_trip() {
    let backend = Slow {
        release_takes: 100 * MS,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut guards = Vec::new();
    for nth in 0..IN_FLIGHT * BATCH {
        guards.push(locks.acquire(format!("key {nth}")).await.expect("free"));
    }
    let began = Moment::now();
    drop(guards);
    assert!(locks.shutdown(SECOND).await.is_idle());
    let took = Moment::now().since(began);
    assert!(took < 110 * MS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_release_delays_next_only_shortly() {
    let backend = Slow {
        release_takes: SECOND,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let first = locks.acquire("a").await.expect("free");
    let second = locks.acquire("b").await.expect("free");
    drop(first);
    sleep(MS).await;
    let began = Moment::now();
    second.release().await.expect("held");
    let took = Moment::now().since(began);
    assert!(took <= SECOND + 2 * PATIENCE, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn releases_of_many_keys_take_one_task() {
    let locks = LockManager::builder(Slow::default()).build();
    let locks = locks.expect("defaults");
    let mut guards = Vec::new();
    for key in ["a", "b", "c"] {
        guards.push(locks.acquire(key).await.expect("free"));
    }
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    drop(guards);
    assert_eq!(tasks(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn key_queued_at_end_of_task_starts_another() {
    let backend = Erased::new(Slow::default());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let releases = &engine.home.releases;
    for (at_home, over) in [(false, true), (true, true), (false, false)] {
        releases.push(key());
        assert!(releases.start());
        drop(Running {
            engine: Arc::clone(&engine),
            at_home,
            over,
        });
        yield_now().await;
        assert!(releases.is_empty(), "another task returns it");
        yield_now().await;
    }
}

/// The runtime of the task blocks.
#[tokio::test(start_paused = true)]
async fn stuck_queue_is_returned_from_home() {
    let locks = LockManager::builder(Slow::default()).build();
    let locks = locks.expect("defaults");
    let guard = locks.acquire("k").await.expect("free");
    let releases = &locks.engine().home.releases;
    releases.push(key());
    assert!(releases.start(), "no other task starts");
    drop(guard);
    assert!(!releases.is_empty());
    let next = locks.acquire("k").wait(SECOND / 4).await;
    assert!(next.is_ok(), "{next:?}");
}

#[cfg(feature = "dashboard")]
#[tokio::test(start_paused = true)]
async fn hold_is_counted_at_last_release() {
    let locks = LockManager::in_memory();
    let holds = || locks.tally().totals().hold.count();
    let guard = locks.acquire("k").await.expect("free");
    let again = locks.acquire("k").owner(guard.owner()).await.expect("own");
    drop(again);
    assert_eq!(holds(), 0);
    drop(guard);
    assert_eq!(holds(), 1);
    let lost = locks.acquire("k").await.expect("free");
    assert!(locks.force_release("k").await.expect("in memory"));
    assert_eq!(holds(), 2);
    drop(lost);
    assert_eq!(holds(), 2, "counted at the loss");
}

#[cfg(feature = "dashboard")]
#[tokio::test(start_paused = true)]
async fn reply_to_release_is_counted() {
    let locks = LockManager::in_memory();
    drop(locks.acquire("k").await.expect("free"));
    assert_eq!(locks.tally().traffic().releases(Reply::Done), 1);
}

/// Releases a key whose hand-offs have ended to its waiter, which is not polled any more.
async fn released_to_waiter(locks: &LockManager) {
    let guard = locks.acquire("k").await.expect("free");
    let mut next = Box::pin(locks.acquire("k").into_future());
    assert!(timeout(SECOND, &mut next).await.is_err());
    drop(guard);
    tokio::spawn(async move {
        sleep(10 * SECOND).await;
        drop(next);
    });
}

#[tokio::test(start_paused = true)]
async fn release_to_waiter_takes_no_further_task() {
    let backend = Slow {
        keeps: true,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    released_to_waiter(&locks).await;
    let of_manager = locks.clone();
    // It runs after the task that the release has started, and before any that this one starts.
    let next = tokio::spawn(async move { of_manager.snapshot().waiting });
    assert_eq!(next.await.expect("no panic"), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_release_to_waiter_delays_no_other() {
    let backend = Slow {
        release_takes: SECOND,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let other = locks.acquire("other").await.expect("free");
    released_to_waiter(&locks).await;
    sleep(MS).await;
    let began = Moment::now();
    other.release().await.expect("held");
    let took = Moment::now().since(began);
    assert!(took <= SECOND + 2 * MS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn empty_queue_has_no_more() {
    let queue = ReleaseQueue::default();
    assert!(timeout(SECOND, queue.has_more()).await.is_err());
    queue.push(key());
    assert!(timeout(SECOND, queue.has_more()).await.is_ok());
}
