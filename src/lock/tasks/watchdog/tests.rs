//! The start and the end of the watchdog's task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Handle};
use tokio::time::sleep;

use super::*;
use crate::backend::{Erased, Memory};
use crate::lock::acquire::Acquire;
use crate::lock::clock::Span;
use crate::lock::engine::options::Options;
use crate::lock::engine::unconfirmed::UnknownLease;
use crate::lock::tests::{MS, SECOND, Slow, number};
use crate::{LockKey, LockManager};

/// Returns an engine and its home, the runtime of this test.
fn engine() -> (Arc<Engine>, Arc<Home>) {
    let backend = Erased::new(Memory::new());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let home = Arc::clone(&engine.home);
    (engine, home)
}

fn acquire(engine: &Arc<Engine>, key: &'static str) -> Acquire {
    Acquire::new(Arc::clone(engine), LockKey::new(key).into())
}

#[tokio::test(start_paused = true)]
async fn alarm_without_task_delays_no_renewal() {
    let (engine, home) = engine();
    // The time was set for a lock that was released before its watchdog started.
    home.watchdog.set(Moment::now() + SECOND, home.clock);
    let guard = acquire(&engine, "a").await.expect("free");
    sleep(100 * SECOND).await;
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn many_locks_take_one_task() {
    let (engine, _home) = engine();
    let keys = ["a", "b", "c", "d", "e"];
    let mut guards = Vec::new();
    for key in keys {
        guards.push(acquire(&engine, key).await.expect("free"));
        sleep(SECOND).await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn task_ends_with_last_lane() {
    let (engine, home) = engine();
    for _ in 0..5 {
        drop(acquire(&engine, "a").await.expect("free"));
        assert!(home.watchdog.is_running());
        sleep(2 * TICK).await;
        assert!(!home.watchdog.is_running());
    }
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn brief_locks_share_one_task() {
    let (engine, home) = engine();
    for _ in 0..5 {
        drop(acquire(&engine, "a").await.expect("free"));
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        assert!(home.watchdog.is_running());
    }
}

#[tokio::test(start_paused = true)]
async fn lock_entered_at_end_of_task_is_watched() {
    let (engine, home) = engine();
    // A task is about to end, and has made its last check.
    assert!(home.watchdog.start());
    let held = acquire(&engine, "a").lease(SECOND).await.expect("free");
    drop(ends(&engine, true));
    assert!(home.watchdog.is_running(), "another one");
    let _other = acquire(&engine, "b").await.expect("free");
    // The lock is held for longer than its lease.
    let next = acquire(&engine, "a").wait(2 * SECOND).await;
    assert!(next.is_ok() && !held.is_held(), "{next:?}");
}

fn ends(engine: &Arc<Engine>, over: bool) -> Running {
    Running {
        engine: Arc::downgrade(engine),
        home: Arc::clone(&engine.home),
        began: true,
        over,
    }
}

/// Adds a lease whose release is unconfirmed, without a wake-up of the task.
fn add_unconfirmed(engine: &Engine) {
    let lease = UnknownLease::attempted(number(1), engine.now() + Span::new(100 * SECOND));
    engine.home.unconfirmed.add(LockKey::new("a"), 0, lease);
}

#[tokio::test(start_paused = true)]
async fn lease_added_at_end_of_task_is_released() {
    let (engine, home) = engine();
    // A task is about to end, and has made its last check.
    assert!(home.watchdog.start());
    add_unconfirmed(&engine);
    drop(ends(&engine, true));
    sleep(SECOND).await;
    assert_eq!(engine.unconfirmed(), 0);
}

#[tokio::test(start_paused = true)]
async fn panic_of_program_repeats_no_release_in_flight() {
    let (engine, home) = engine();
    assert!(home.watchdog.start());
    add_unconfirmed(&engine);
    let now = engine.now();
    assert!(home.unconfirmed.next_command(now).is_some());
    let task = AssertUnwindSafe(ends(&engine, false));
    let panicked = catch_unwind(|| {
        let _task = task;
        panic!("a subscriber");
    });
    assert!(panicked.is_err() && home.watchdog.is_running());
    assert!(home.unconfirmed.next_command(now).is_none());
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the program panics");
    }
}

/// The turns of some kept leases end in the round that reports the loss of another lock.
#[test]
fn panic_of_program_leaves_no_kept_lease() {
    const KEPT: usize = 20;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    // It is not driven, so no timer wakes the listener first.
    let locks = LockManager::builder(Memory::new()).runtime(runtime.handle().clone());
    let locks = locks.keep_released(100 * MS).build().expect("valid");
    let _entered = runtime.enter();
    for n in 0..2 * KEPT {
        let guard = locks
            .acquire(format!("k{}", n % KEPT))
            .into_future()
            .now_or_never();
        drop(guard.expect("at once").expect("free"));
    }
    let held = locks
        .acquire("held")
        .max_hold(100 * MS)
        .into_future()
        .now_or_never();
    let held = held.expect("at once").expect("free");
    let mut lost = pin!(held.lost());
    let panics = Waker::from(Arc::new(Panics));
    let polled = lost.as_mut().poll(&mut Context::from_waker(&panics));
    assert!(polled.is_pending());
    std::thread::sleep(105 * MS);
    let engine = locks.engine();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        round(engine, &engine.home, engine.now())
    }));
    let after = locks.snapshot();
    // The lock whose listener has panicked may be left.
    assert!(after.kept == 0 && after.unreleased <= 1, "{after:?}");
    assert!(panicked.is_err());
}

#[tokio::test(start_paused = true)]
async fn recovery_of_backend_renews_at_once() {
    let backend = Slow::default();
    let locks = LockManager::builder(backend.clone()).build();
    let guard = locks.expect("defaults").acquire("k").await.expect("free");
    sleep(SECOND).await;
    let before = guard.remaining();
    for recovery in &*backend.recoveries.lock().expect("no panic") {
        recovery.hint();
    }
    sleep(MS).await;
    assert!(guard.remaining() > before);
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn resume_is_detected_within_tick() {
    let (engine, _home) = engine();
    let _guard = acquire(&engine, "a").await.expect("free");
    let mut late = acquire(&engine, "a").wait(5 * SECOND).into_future();
    assert!((&mut late).now_or_never().is_none());
    // Starts the task.
    sleep(TICK).await;
    crate::test_util::suspend(6 * SECOND);
    sleep(2 * TICK).await;
    let outcome = late.now_or_never().expect("rejected");
    assert!(outcome.expect_err("held").is_busy());
}
