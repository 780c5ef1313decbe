//! Replies to a release.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::{BackendError, Erased, Memory};
use crate::lock::clock::Span;
use crate::lock::lease::Lease;
use crate::lock::options::Options;
use crate::lock::release_queue::ReleaseQueue;
use crate::lock::tests::{
    self, MS, RENEWED, SECOND, Slow, TOKENS, claim, engine_of, here, key, number, runtime,
};
use crate::{ErrorKind, LockManager};

#[test]
fn failed_release_dropped_by_lane_is_resolved() {
    let mut effects = Effects::default();
    let sent = Sent {
        outgoing: Outgoing {
            lease: number(1),
            ttl: Span::new(Duration::from_secs(7)),
        },
        home: here(),
    };
    let error = Err(BackendError::unknown("no reply"));
    sent.settle(&mut Lane::default(), error, Moment::now(), &mut effects);
    let Work::ResolveGranted(outgoing, home) = effects.work.remove(0) else {
        panic!("not resolved");
    };
    assert_eq!((outgoing.lease, home), (number(1), here()));
    assert_eq!(outgoing.ttl, sent.outgoing.ttl);
}

/// Returns the lane of a lock whose release was sent, and is reported.
fn returning(now: Moment) -> Lane {
    let (mut lane, mut effects) = (Lane::default(), Effects::default());
    let claim = claim(1, RENEWED);
    lane.contend_inline(&Arc::default(), &claim, now);
    let lease = Lease::new(number(1), 100, TOKENS, RENEWED, now);
    let grant = lane.granted_inline(&key(), &claim, lease, now, &mut effects);
    let report = Some(oneshot::channel().0);
    let release = tests::release(1, report, Some(here()), now);
    lane.release(&key(), &grant, release, &mut effects);
    assert!(lane.take_return(here(), now, now).is_some());
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
        let sent = Sent {
            outgoing: Outgoing {
                lease: number(1),
                ttl: RENEWED.ttl,
            },
            home: here(),
        };
        let mut effects = Effects::default();
        let not_held = Ok(Released::NotHeld);
        sent.settle(&mut lane, not_held, now + after, &mut effects);
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

/// Returns a manager whose release of the key was in flight when its runtime ended.
fn released_in_ended_runtime() -> LockManager {
    let backend = Slow {
        release_takes: 50 * MS,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    runtime().block_on(async {
        drop(locks.acquire("k").await.expect("free"));
        // The task sends the release.
        yield_now().await;
    });
    locks
}

#[test]
fn release_of_ended_runtime_is_sent_again() {
    let locks = released_in_ended_runtime();
    let next = runtime().block_on(locks.acquire("k").wait(2 * SECOND).into_future());
    assert!(next.is_ok(), "{next:?}");
}

#[test]
fn release_of_ended_runtime_needs_no_waiter() {
    let locks = released_in_ended_runtime();
    let left = runtime().block_on(async {
        drop(locks.acquire("other").await.expect("free"));
        locks.shutdown(2 * SECOND).await
    });
    assert!(left.is_idle(), "{left:?}");
}

#[test]
fn key_queued_at_end_of_task_starts_another() {
    let [one, other] = [runtime(), runtime()];
    let (engine, [home, _]) = engine_of([&one, &other]);
    assert!(home.releases.start());
    let running = Running {
        engine,
        home: Arc::clone(&home),
        over: true,
    };
    home.releases.push(key());
    drop(running);
    assert!(!home.releases.start(), "a task runs");
}

#[test]
fn keys_of_ended_runtime_are_queued_in_another() {
    let [ends, stays] = [runtime(), runtime()];
    let (engine, [home, other]) = engine_of([&ends, &stays]);
    assert!(home.releases.start());
    home.releases.push(key());
    let over = false;
    drop(Running { engine, home, over });
    assert!(!other.releases.is_empty());
    assert!(!other.releases.start(), "a task runs");
}

#[tokio::test]
async fn release_runs_in_runtime_of_its_caller() {
    let engine = |backend| Arc::new(Engine::new(backend, Options::default(), None));
    let remote = engine(Erased::new(Slow::default()));
    assert_eq!(remote.release_home(), remote.current_home().ok());
    assert!(remote.release_home().is_some());
    let local = engine(Erased::new(Memory::new()));
    assert_eq!(local.release_home(), None);
}

#[test]
fn caller_without_runtime_is_rejected() {
    let engine = |backend| Arc::new(Engine::new(backend, Options::default(), None));
    let error = engine(Erased::new(Slow::default())).require_runtime();
    assert_eq!(
        error.expect_err("no runtime").kind(),
        ErrorKind::Misconfigured
    );
    // A backend that replies at once needs no task.
    assert!(engine(Erased::new(Memory::new())).require_runtime().is_ok());
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
