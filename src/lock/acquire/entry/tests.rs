use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::runtime::Builder;

use crate::backend::Memory;
use crate::lock::tests::{MS, SECOND, Slow};
use crate::mutex::tests::ends;
use crate::{ErrorKind, LockManager};

fn manager(memory: &Memory) -> LockManager {
    let locks = LockManager::builder(memory.clone()).build();
    locks.expect("defaults")
}

#[tokio::test(start_paused = true)]
async fn single_attempt_in_memory_is_rejected_at_once() {
    let memory = Memory::new();
    let (one, other) = (manager(&memory), manager(&memory));
    let _guard = one.acquire("k").await.expect("free");
    let outcome = other.acquire("k").no_wait().into_future().now_or_never();
    let error = outcome.expect("without waiting").expect_err("held");
    assert!(error.is_busy());
}

/// The child has a copy of the lanes, and its parent the lease.
#[tokio::test(start_paused = true)]
async fn fork_takes_no_kept_lease() {
    let locks = LockManager::builder(Slow::default()).keep_released(50 * MS);
    let locks = locks.build().expect("valid");
    for _ in 0..2 {
        drop(locks.acquire("k").await.expect("free"));
    }
    let engine = locks.engine();
    engine.recent.pretend_fork();
    let error = locks.acquire("k").await.expect_err("of the parent");
    assert!(error.is_unavailable());
    let is_kept = || {
        engine
            .lanes
            .inspect(&"k".into(), |lane| lane.kept_lease().is_some())
    };
    assert_eq!(is_kept(), Some(true), "it is left to the parent");
    assert_eq!(locks.shutdown(MS).await.kept, 1);
}

#[tokio::test(start_paused = true)]
async fn free_key_in_memory_takes_no_seat() {
    let locks = LockManager::builder(Memory::new()).max_waiters(1).build();
    let locks = locks.expect("valid");
    let _guard = locks.acquire("k").await.expect("free");
    let mut waiter = locks.acquire("k").into_future();
    assert!((&mut waiter).now_or_never().is_none());
    // An attempt in flight reserves a place among the waiters.
    let other = locks.acquire("other").await;
    assert!(other.is_ok(), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn permits_in_flight_are_no_waiters_of_key() {
    let backend = Slow {
        attempt_takes: MS,
        has_queue: true,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).max_waiters_per_key(2);
    let locks = locks.build().expect("valid");
    let acquire = |_| locks.acquire("k").permits(9).wait(SECOND).into_future();
    let held = join_all((0..9).map(acquire)).await;
    assert!(held.iter().all(Result::is_ok));
    let refused = join_all((0..4).map(acquire)).await;
    let kinds = refused.iter().map(|outcome| {
        let error = outcome.as_ref().expect_err("no permit left");
        assert!(error.retry_after().is_some_and(|after| after <= SECOND / 3));
        error.kind()
    });
    assert_eq!(
        kinds
            .clone()
            .filter(|it| *it == ErrorKind::PermitsExhausted)
            .count(),
        2
    );
    assert_eq!(
        kinds.filter(|it| *it == ErrorKind::TooManyWaiters).count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_admits_only_owner_of_held_lock() {
    let locks = manager(&Memory::new());
    let guard = locks.acquire("k").await.expect("free");
    locks.shutdown(std::time::Duration::ZERO).await;
    let again = locks.acquire("k").owner(guard.owner()).await;
    assert_eq!(again.expect("its own lock").hold_count(), 2);
    let error = locks
        .acquire("k")
        .no_wait()
        .await
        .expect_err("another owner");
    assert_eq!(error.kind(), ErrorKind::ShuttingDown);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the program panics");
    }
}

/// The acquire finds the expired lock of another owner, reports its loss and has queued by then.
#[test]
fn panic_in_entry_leaves_queue() {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    // It is not driven, so its watchdog does not come first.
    let locks = LockManager::builder(Memory::new()).runtime(runtime.handle().clone());
    let locks = locks.build().expect("valid");
    let _entered = runtime.enter();
    let held = locks.acquire("k").lease(10 * MS).into_future();
    let held = held.now_or_never().expect("at once").expect("free");
    let mut lost = pin!(held.lost());
    let panics = Waker::from(Arc::new(Panics));
    let polled = lost.as_mut().poll(&mut Context::from_waker(&panics));
    assert!(polled.is_pending());
    thread::sleep(11 * MS);
    let mut next = locks.acquire("k").into_future();
    let entered = catch_unwind(AssertUnwindSafe(|| (&mut next).now_or_never()));
    assert!(entered.is_err(), "{entered:?}");
    assert_eq!(locks.snapshot().waiting, 0);
}

/// A task of the program that only its waker owns, and what is dropped with it.
struct Task<T> {
    _owned: Mutex<T>,
}

impl<T: Send + 'static> Wake for Task<T> {
    fn wake(self: Arc<Self>) {}
}

fn task<T: Send + 'static>(owned: T) -> Waker {
    let _owned = Mutex::new(owned);
    Waker::from(Arc::new(Task { _owned }))
}

/// Polls a future in a task that owns something, and then in another one.
fn poll_in_two<F: Future>(mut future: Pin<&mut F>, owned: impl Send + 'static) {
    let first = task(owned);
    let polled = future.as_mut().poll(&mut Context::from_waker(&first));
    assert!(polled.is_pending());
    drop(first);
    let _polled = future.poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn replaced_task_of_waiter_may_hold_lock() {
    assert!(ends(|| {
        let locks = manager(&Memory::new());
        let acquire = || locks.acquire("k").into_future();
        let guard = acquire().now_or_never().expect("at once").expect("free");
        let mut waiter = pin!(acquire());
        poll_in_two(waiter.as_mut(), guard);
        assert!(waiter.now_or_never().is_some_and(|it| it.is_ok()));
    }));
}

#[test]
fn replaced_or_removed_task_may_watch_loss() {
    assert!(ends(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let _entered = runtime.as_ref().expect("a runtime").enter();
        let locks = manager(&Memory::new());
        let acquired = locks.acquire("k").into_future().now_or_never();
        let held = acquired.expect("at once").expect("free").held();
        let watched = || {
            let mut lost = Box::pin(held.lost());
            assert!(lost.as_mut().now_or_never().is_none());
            lost
        };
        let mut lost = Box::pin(held.lost());
        poll_in_two(lost.as_mut(), watched());
        let first = task(watched());
        let polled = lost.as_mut().poll(&mut Context::from_waker(&first));
        assert!(polled.is_pending());
        drop(first);
        drop(lost);
    }));
}
