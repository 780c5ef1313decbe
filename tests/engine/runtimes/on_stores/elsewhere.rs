//! Futures that were created or polled in a runtime that stopped, and are awaited in another one.

use std::sync::mpsc;
use std::time::Duration;

use futures_util::poll;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tower_lock::{Error, LockManager};

use super::stopped::{Fate, LATE, LEASE, Other, current_thread, in_each_case, polled};
use crate::support::engine::MS;

/// Drives a future in a runtime of its own.
fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    current_thread().block_on(async { timeout(limit, future).await })
}

/// Asserts that an acquire that was polled in the other runtime ends within its wait in the second one.
fn ends_elsewhere(fate: Fate, locks: &LockManager, wait: Duration) -> Error {
    let (send, receive) = mpsc::channel();
    let acquire = locks.acquire("k").wait(wait);
    let _other = Other::after(fate, async move {
        send.send(polled(acquire, 1).await).unwrap();
    });
    let waiting = receive.recv().unwrap().0;
    let end = within(wait + LATE, waiting);
    end.expect("ends in the second runtime").unwrap_err()
}

#[test]
fn wait_awaited_elsewhere_times_out_after_stop() {
    let wait = LEASE / 2;
    in_each_case(|fate, here, _| {
        let third = current_thread();
        let held = here.acquire("k").lease(20 * LEASE).into_future();
        let _held = third.block_on(held).unwrap();
        let start = Instant::now();
        assert!(ends_elsewhere(fate, here, wait).is_busy());
        assert!(start.elapsed() >= wait - 20 * MS);
    });
}

/// The first attempt or the contender of the waiter ran in the other runtime.
#[test]
fn attempt_awaited_elsewhere_ends_after_stop() {
    in_each_case(|fate, here, there| {
        let third = current_thread();
        let held = there.acquire("k").lease(20 * LEASE).into_future();
        let _held = third.block_on(held).unwrap();
        let error = ends_elsewhere(fate, here, LEASE / 2);
        assert!(error.is_busy() || error.is_unavailable(), "{error:?}");
    });
}

/// The loss was polled in the other runtime before.
#[test]
fn loss_awaited_elsewhere_is_noticed_after_stop() {
    let lease = LEASE / 2;
    in_each_case(|fate, here, _| {
        let (send, receive) = mpsc::channel();
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            let guard = locks.acquire("k").lease(lease).await.unwrap();
            let mut lost = Box::pin(guard.lost());
            assert!(poll!(&mut lost).is_pending());
            send.send((guard, lost)).unwrap();
        });
        let (guard, lost) = receive.recv().unwrap();
        let lost = within(lease + LATE, lost);
        lost.expect("the loss is reported");
        assert!(!guard.is_held());
    });
}

/// The future was created in the other runtime, and polled only here.
#[test]
fn loss_created_elsewhere_is_noticed_after_stop() {
    let lease = LEASE / 2;
    in_each_case(|fate, here, _| {
        let (send, receive) = mpsc::channel();
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            let guard = locks.acquire("k").lease(lease).await.unwrap();
            send.send(guard.lost()).unwrap();
            guard
        });
        let lost = receive.recv().unwrap();
        let lost = within(lease + LATE, lost);
        lost.expect("the loss is reported");
    });
}
