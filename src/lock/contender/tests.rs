use std::sync::atomic::Ordering;
use std::thread;

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::*;
use crate::LockManager;
use crate::backend::{Backend as _, BackendErrorKind, Erased, Memory, Mode};
use crate::lock::claim::Claim;
use crate::lock::lease::valid_until;
use crate::lock::options::Options;
use crate::lock::tests::{MS, RENEWED, SECOND, Slow, claim, key, waiter};
use crate::lock::watchdog::adopt_all;

mod pauses;

#[test]
fn late_grant_is_resolved() {
    let engine = Engine::new(Erased::new(Memory::new()), Options::default(), None);
    let sent_at = Moment::now();
    let end = valid_until(sent_at, RENEWED.ttl);
    for (now, is_granted) in [(end.before(MS), true), (end, false)] {
        let replied = Replied {
            lease: engine.new_lease_id(),
            terms: RENEWED,
            sent_at,
            now,
            outcome: Ok(Contended::granted(100)),
        };
        let (outcome, unresolved) = judge(&engine, replied);
        assert_eq!(matches!(outcome, Outcome::Granted(_)), is_granted);
        assert_eq!(unresolved.is_none(), is_granted);
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
async fn shutdown_counts_lease_of_attempt_in_flight() {
    let backend = Slow {
        attempt_takes: 3 * SECOND,
        ..Slow::default()
    };
    let memory = backend.memory.clone();
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut dropped = locks.acquire("k").wait(SECOND).into_future();
    assert!((&mut dropped).now_or_never().is_none());
    drop(dropped);
    // The task leaves the attempt behind after the response timeout.
    sleep(2 * SECOND).await;
    assert_eq!(locks.snapshot().unreleased, 1);
    assert_eq!(locks.shutdown(SECOND / 2).await.unreleased, 1);
    assert!(locks.shutdown(2 * SECOND).await.is_idle());
    let key = LockKey::new("k");
    assert!(memory.inspect(&key).await.expect("memory").is_none());
}

#[test]
fn waiter_of_ended_runtime_is_rejected() {
    let runtime = || Builder::new_current_thread().enable_all().build();
    let [own, other] = [runtime(), runtime()].map(|runtime| runtime.expect("a runtime"));
    let memory = Memory::new();
    let [locks, others] = [memory.clone(), memory].map(|memory| {
        let locks = LockManager::builder(memory).build();
        locks.expect("defaults")
    });
    let _guard = other.block_on(others.acquire("k").into_future());
    let mut waiter = locks.acquire("k").into_future();
    assert!(own.block_on(async { (&mut waiter).now_or_never().is_none() }));
    drop(own);
    let outcome = waiter.now_or_never().expect("without waiting");
    assert!(outcome.expect_err("an ended runtime").is_unavailable());
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

/// The attempt can take effect after the release of its lease, because its runtime still ran then.
#[test]
fn attempt_of_replaced_loop_is_released_at_its_end() {
    let runtime = || {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime")
    };
    let [own, other] = [runtime(), runtime()];
    let backend = Slow {
        attempt_takes: 100 * SECOND,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let engine = Arc::new(Engine::new(Erased::new(backend), Options::default(), None));
    let home = |runtime: &Runtime| {
        let _entered = runtime.enter();
        engine.current_home().expect("a runtime with timers")
    };
    let [own_home, other_home] = [&own, &other].map(home);
    let claim = Claim {
        home: own_home,
        ..claim(1, RENEWED)
    };
    let (waiter, _answer) = waiter(claim);
    engine.event(&key(), |lane, effects| {
        lane.enqueue(waiter, Seen::Nothing, Moment::now(), effects);
    });
    own.block_on(yield_now());
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    engine.homes.end(own_home);
    adopt_all(&engine, other_home);
    assert_eq!(engine.unresolved(), 1);
    other.block_on(async {
        let home = engine.home(other_home).expect("a runtime");
        let released = timeout(SECOND, home.unresolved.finished());
        released.await.expect("a reply");
    });
    drop(own);
    assert_eq!(engine.unresolved(), 1);
}

/// Returns an acquire loop that does not run.
fn idle_loop() -> (Arc<Engine>, AcquireLoop) {
    let backend = Erased::new(Slow::default());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let home = engine.current_home().expect("a runtime");
    let mut acquire_loop = AcquireLoop::new(&engine, &LockKey::new("k"), home, Wakeup::default());
    // Its end is no part of these tests.
    acquire_loop.over = true;
    (engine, acquire_loop)
}

/// A refused attempt without a place has left nothing in the backend.
#[tokio::test]
async fn refused_attempt_left_behind_needs_no_release() {
    let unknown = || Err(BackendError::unknown(NoReply));
    let refused = || Ok(Contended::waiting(SECOND, None));
    for (outcome, unresolved) in [(refused(), 0), (unknown(), 1)] {
        let (engine, acquire_loop) = idle_loop();
        let home = engine.home(acquire_loop.home).expect("a runtime");
        home.unresolved.attempt_left_behind();
        let (lease, now) = (engine.new_lease_id(), Moment::now());
        let left = LeftBehind {
            engine: Arc::clone(&engine),
            home,
            key: acquire_loop.key.clone(),
            lease: LeaseNumber::of(lease),
            ttl: unanswered(RENEWED.ttl),
            may_hold: true,
        };
        left.end(&Replied {
            lease,
            terms: RENEWED,
            sent_at: now,
            now,
            outcome,
        });
        assert_eq!(engine.unresolved(), unresolved);
    }
}

#[tokio::test]
async fn failed_attempt_without_effect_keeps_place() {
    let (engine, mut acquire_loop) = idle_loop();
    let lease = engine.new_lease_id();
    let mut place_after = |outcome| {
        let now = Moment::now();
        let replied = Replied {
            lease,
            terms: RENEWED,
            sent_at: now,
            now,
            outcome,
        };
        let place = acquire_loop.place_after(LeaseNumber::of(lease), &replied);
        (place, acquire_loop.queued)
    };
    let waiting = Contended::waiting(SECOND, 3);
    assert_eq!(
        place_after(Ok(waiting)),
        (
            Place::In(QueuePlace {
                limit: None,
                lease: LeaseNumber::of(lease),
                mode: Mode::Exclusive
            }),
            Some(3)
        )
    );
    let kind = BackendErrorKind::Unavailable;
    let refused = Err(BackendError::refused(kind, "down"));
    assert_eq!(place_after(refused), (Place::Unchanged, Some(3)));
    let unknown = Err(BackendError::unknown("no reply"));
    assert_eq!(place_after(unknown), (Place::Out, None));
}

/// Only the end of its runtime drops a loop that is not over.
#[tokio::test]
async fn dropped_loop_ends_its_runtime() {
    let (engine, mut acquire_loop) = idle_loop();
    let home = acquire_loop.home;
    acquire_loop.over = false;
    assert!(engine.homes.get(home).is_some());
    drop(acquire_loop);
    assert!(engine.homes.get(home).is_none());
}

#[tokio::test]
async fn lease_of_lost_place_is_resolved() {
    for (own, unresolved) in [(true, 0), (false, 1)] {
        let (engine, mut acquire_loop) = idle_loop();
        let lease = engine.new_lease_id();
        let sent = match own {
            true => lease,
            false => engine.new_lease_id(),
        };
        let now = Moment::now();
        let replied = Replied {
            lease,
            terms: RENEWED,
            sent_at: now,
            now,
            outcome: Ok(Contended::waiting(SECOND, None)),
        };
        let place = acquire_loop.place_after(LeaseNumber::of(sent), &replied);
        assert_eq!((place, engine.unresolved()), (Place::Out, unresolved));
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
