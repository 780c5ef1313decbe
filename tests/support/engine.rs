//! Managers, and checks of their deadlines that tolerate a busy machine.

#[cfg(feature = "redis")]
mod on_server;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, sleep, sleep_until};
use tower_lock::backend::Backend;
use tower_lock::manager::Acquire;
use tower_lock::{Error, Held, LockManager};

#[cfg(feature = "redis")]
pub(crate) use on_server::*;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The timeout for conditions without a deadline of their own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A manager with the default settings, as in a separate process.
pub(crate) fn manager_on(backend: &(impl Backend + Clone)) -> LockManager {
    LockManager::builder(backend.clone()).build().unwrap()
}

/// Returns the outcome of `future`, which must complete by `deadline`.
///
/// The future is polled before the clock is read. A stall of the machine delays both and fails no test. A
/// future that waits for more than its deadline fails.
pub(crate) async fn by<F: Future>(deadline: Instant, what: &str, future: F) -> F::Output {
    tokio::select! {
        biased;
        outcome = future => outcome,
        () = sleep_until(deadline) => panic!("{what}: late"),
    }
}

/// Waits for the loss of a lock, which must be reported at its expiry and at most 10 ms later.
pub(crate) async fn lost_at_its_deadline(held: &Held) {
    let overdue = async {
        loop {
            let end = Instant::now() + held.remaining();
            sleep_until(end + 10 * MS).await;
            // A renewal may have moved the expiry.
            if !held.is_held() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = held.lost() => assert!(!held.is_held()),
        () = overdue => panic!("the loss was reported late"),
    }
}

/// Returns the error of an acquire that must fail at the end of its wait: not before, and at most 50 ms
/// after.
pub(crate) async fn fails_at_its_deadline(acquire: Acquire, wait: Duration) -> Error {
    let mut acquiring = pin!(acquire.wait(wait).into_future());
    let start = Instant::now();
    assert!(poll!(&mut acquiring).is_pending(), "nothing to wait for");
    // The wait counts from the first poll, which precedes this line.
    let deadline = Instant::now() + wait + 50 * MS;
    let error = by(deadline, "the end of a wait", acquiring).await;
    let waited = start.elapsed();
    assert!(waited >= wait, "ended after {waited:?}");
    error.expect_err("another owner has it")
}

/// Waits until the condition is true.
pub(crate) async fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    within(PATIENCE, what, is_so).await;
}

/// Waits until the condition is true, for at most `patience`.
pub(crate) async fn within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    loop {
        // The clock is read first, so a slow check that succeeds is not late.
        let late = Instant::now() > deadline;
        if is_so() {
            return;
        }
        assert!(!late, "not within {patience:?}: {what}");
        sleep(5 * MS).await;
    }
}
