use std::sync::atomic::Ordering;
use std::thread;

use futures_util::FutureExt as _;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;
use crate::LockManager;
use crate::backend::{Backend as _, BackendError, BackendErrorKind, Erased, Memory, Mode};
use crate::lock::clock::Span;
use crate::lock::engine::options::Options;
use crate::lock::lane::unanswered;
use crate::lock::lease::valid_until;
use crate::lock::tests::{MS, RENEWED, SECOND, Slow, key};
use crate::task::Runtime;

mod pauses;

#[tokio::test(start_paused = true)]
async fn late_grant_is_resolved() {
    let engine = Engine::new(Erased::new(Memory::new()), Options::default(), None);
    let engine = Arc::new(engine);
    let sent_at = Moment::now();
    let end = valid_until(sent_at, RENEWED.ttl);
    for (now, is_granted) in [(end.before(MS), true), (end, false)] {
        let replied = Replied {
            lease: LeaseNumber::of(engine.new_lease_id()),
            terms: RENEWED,
            sent_at,
            now,
            outcome: Ok(Contended::granted(100)),
        };
        let outcome = judge(&engine, &key(), replied);
        assert_eq!(matches!(outcome, Outcome::Granted(_)), is_granted);
        assert_eq!(engine.unconfirmed() == 0, is_granted);
    }
}

/// Both runtimes run all the time, and each waits for less than the response timeout.
#[test]
fn attempt_of_running_task_is_not_replaced() {
    let backend = Slow {
        attempt_takes: 200 * MS,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let locks = LockManager::builder(backend).build().expect("defaults");
    let acquire = |locks: LockManager| {
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let guard = locks.acquire("k").await.expect("a turn");
                sleep(20 * MS).await;
                drop(guard);
            });
        })
    };
    let both = [acquire(locks.clone()), acquire(locks.clone())];
    for thread in both {
        thread.join().expect("both have their turn");
    }
    // One attempt for the first acquire, and at most one for the second.
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts <= 2, "{attempts} attempts");
}

#[tokio::test(start_paused = true)]
async fn stuck_attempt_of_unpolled_acquire_is_replaced() {
    let backend = Slow {
        attempt_takes: 100 * SECOND,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut unpolled = locks.acquire("k").into_future();
    assert!((&mut unpolled).now_or_never().is_none());
    let waiter = locks.acquire("k").wait(4 * SECOND).await;
    assert!(waiter.expect_err("no reply").is_unavailable());
    // The second attempt is the task's own, and is not replaced.
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn late_grant_of_replaced_attempt_is_released() {
    let backend = Slow {
        attempt_takes: SECOND,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut unpolled = locks.acquire("k").wait(SECOND).into_future();
    assert!((&mut unpolled).now_or_never().is_none());
    // The second attempt reaches the backend after the first one.
    let waiter = locks.acquire("k").wait(3 * SECOND).await;
    assert!(waiter.expect("released").is_held());
}

#[tokio::test(start_paused = true)]
async fn late_rejection_of_replaced_attempt_is_ignored() {
    let backend = Slow {
        attempt_takes: SECOND,
        ..Slow::default()
    };
    let (attempts, memory) = (Arc::clone(&backend.attempts), backend.memory.clone());
    let other = LockManager::builder(memory).build().expect("defaults");
    let held = other.acquire("k").await.expect("free");
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut unpolled = locks.acquire("k").wait(SECOND).into_future();
    assert!((&mut unpolled).now_or_never().is_none());
    let waiter = locks.acquire("k").wait(6 * SECOND).into_future();
    let waiter = tokio::spawn(waiter);
    sleep(3 * SECOND).await;
    // The first attempt, and those of one loop.
    let attempts = attempts.load(Ordering::SeqCst);
    assert!((2..=4).contains(&attempts), "{attempts} attempts");
    drop(held);
    let waiter = waiter.await.expect("no panic");
    assert!(waiter.expect("released").is_held());
    sleep(3 * SECOND).await;
    assert_eq!(locks.snapshot().unreleased, 0);
}

/// A store without a queue: each waiter would want an attempt before its deadline.
#[tokio::test(start_paused = true)]
async fn waiters_of_held_key_make_no_storm() {
    let backend = Slow {
        attempt_takes: MS,
        ..Slow::default()
    };
    let (attempts, memory) = (Arc::clone(&backend.attempts), backend.memory.clone());
    let other = LockManager::builder(memory).build().expect("defaults");
    let _held = other.acquire("k").await.expect("free");
    let locks = LockManager::builder(backend).build().expect("defaults");
    for _ in 0..200 {
        tokio::spawn(locks.acquire("k").wait(SECOND).into_future());
        sleep(25 * MS).await;
    }
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts <= 20, "{attempts} attempts in 5 s");
}

#[tokio::test(start_paused = true)]
async fn shutdown_counts_lease_of_attempt_in_flight() {
    let backend = Slow {
        attempt_takes: 3 * SECOND,
        ..Slow::default()
    };
    let memory = backend.memory.clone();
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut dropped = locks.acquire("k").wait(SECOND).into_future();
    assert!((&mut dropped).now_or_never().is_none());
    // The task sends it.
    yield_now().await;
    drop(dropped);
    // The attempt counts as unanswered after the response timeout.
    sleep(2 * SECOND).await;
    assert_eq!(locks.snapshot().unreleased, 1);
    assert_eq!(locks.shutdown(SECOND / 2).await.unreleased, 1);
    sleep(SECOND).await;
    assert!(locks.shutdown(SECOND).await.is_idle());
    let key = LockKey::new("k");
    assert!(memory.inspect(&key).await.expect("memory").is_none());
}

#[tokio::test(start_paused = true)]
async fn waiter_acquires_after_other_process_releases() {
    let memory = Memory::new();
    let [one, other] = [memory.clone(), memory].map(|memory| {
        let locks = LockManager::builder(memory).build();
        locks.expect("defaults")
    });
    let guard = one.acquire("k").await.expect("free");
    let release = async {
        sleep(SECOND).await;
        drop(guard);
    };
    let (next, ()) = tokio::join!(other.acquire("k"), release);
    assert!(next.expect("released").is_held());
}

#[tokio::test(start_paused = true)]
async fn waiter_yields_after_handoffs_to_other_processes() {
    let locks = LockManager::builder(Slow::default()).build();
    let locks = locks.expect("defaults");
    let first = locks.acquire("k").await.expect("free");
    let next = async {
        let guard = locks.acquire("k").await.expect("released");
        (Moment::now(), guard)
    };
    let release = async {
        sleep(SECOND).await;
        drop(first);
        Moment::now()
    };
    let ((granted_at, _guard), released_at) = tokio::join!(next, release);
    let took = granted_at.since(released_at);
    assert!(!took.is_zero() && took <= 2 * POLITE, "{took:?}");
}

/// Returns an acquire loop that does not run.
fn idle_loop() -> (Arc<Engine>, AcquireLoop) {
    let backend = Erased::new(Slow::default());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let mut acquire_loop = AcquireLoop::new(&engine, &LockKey::new("k"), Wakeup::default());
    // Its end is no part of these tests.
    acquire_loop.over = true;
    (engine, acquire_loop)
}

#[tokio::test]
async fn failed_attempt_without_effect_keeps_place() {
    let (engine, mut acquire_loop) = idle_loop();
    let lease = LeaseNumber::of(engine.new_lease_id());
    let mut place_after = |outcome| {
        let now = Moment::now();
        let replied = Replied {
            lease,
            terms: RENEWED,
            sent_at: now,
            now,
            outcome,
        };
        let place = acquire_loop.place_after(lease, &replied);
        (place, acquire_loop.queued)
    };
    let waiting = Contended::waiting(SECOND, 3);
    assert_eq!(
        place_after(Ok(waiting)),
        (
            PlaceChange::In(QueuePlace {
                limit: None,
                lease,
                mode: Mode::Exclusive
            }),
            Some(3)
        )
    );
    let kind = BackendErrorKind::Unavailable;
    let refused = Err(BackendError::refused(kind, "down"));
    assert_eq!(place_after(refused), (PlaceChange::Unchanged, Some(3)));
    let unknown = Err(BackendError::unknown("no reply"));
    assert_eq!(place_after(unknown), (PlaceChange::Out, None));
}

/// Only the end of the home, or a panic in it, drops a loop that is not over.
#[test]
fn dropped_loop_shows_end_of_home() {
    for ends in [false, true] {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let set = {
            let _entered = runtime.enter();
            Runtime::current()
        };
        let backend = Erased::new(Slow::default());
        let engine = Arc::new(Engine::new(backend, Options::default(), set));
        let acquire_loop = AcquireLoop::new(&engine, &key(), Wakeup::default());
        let _runs = (!ends).then_some(runtime);
        assert!(engine.require_home().is_ok(), "nothing has shown it");
        drop(acquire_loop);
        let checked = engine.require_home();
        assert_eq!(checked.is_err_and(|error| error.is_unavailable()), ends);
    }
}

#[tokio::test]
async fn lease_of_lost_place_is_resolved() {
    for (own, unconfirmed) in [(true, 0), (false, 1)] {
        let (engine, mut acquire_loop) = idle_loop();
        let number = || LeaseNumber::of(engine.new_lease_id());
        let lease = number();
        let sent = match own {
            true => lease,
            false => number(),
        };
        let now = Moment::now();
        let replied = Replied {
            lease,
            terms: RENEWED,
            sent_at: now,
            now,
            outcome: Ok(Contended::waiting(SECOND, None)),
        };
        let place = acquire_loop.place_after(sent, &replied);
        assert_eq!(
            (place, engine.unconfirmed()),
            (PlaceChange::Out, unconfirmed)
        );
    }
}

/// The place outlasts a short lease.
#[tokio::test(start_paused = true)]
async fn place_of_lost_attempt_is_left_until_its_expiry() {
    let memory = Memory::new();
    let backend = Slow {
        memory: memory.clone(),
        loses_waiters: true,
        ..Slow::default()
    };
    let holder = LockManager::builder(memory).build().expect("defaults");
    let _guard = holder.acquire("k").await.expect("free");
    let locks = LockManager::builder(backend).build().expect("defaults");
    let waiter = locks.acquire("k").lease(SECOND).wait(SECOND);
    assert!(waiter.await.is_err());
    let longest = unanswered(Span::new(SECOND)).get();
    assert!(longest > PLACE.get());
    sleep(longest - SECOND).await;
    assert!(locks.snapshot().unreleased > 0);
    // The task checks once per backoff step.
    sleep(3 * SECOND).await;
    assert_eq!(locks.snapshot().unreleased, 0);
}
