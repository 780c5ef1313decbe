//! Holders and waiters that survive a fault.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_lock::{Error, LockGuard, LockManager};

use crate::support::engine::{MS, PATIENCE, SECOND, eventually, within};

/// The lease of locks that a test loses.
pub(crate) const SHORT: Duration = Duration::from_millis(1_500);
/// The lease of locks that must survive, including a slow start of the server.
pub(crate) const LONG: Duration = Duration::from_secs(6);

/// Returns when the lease expires unless it is renewed.
pub(crate) fn end_of(guard: &LockGuard) -> Instant {
    Instant::now() + guard.remaining()
}

/// Completes when a renewal moves the end of the lease beyond `end`.
pub(crate) async fn renewed_beyond(end: Instant, guard: &LockGuard) {
    within(PATIENCE, "the renewal", || {
        assert!(guard.is_held(), "lost instead");
        end_of(guard) > end + 10 * MS
    })
    .await;
}

/// Spawns an acquire and completes when it is queued.
pub(crate) async fn waiter(locks: &LockManager, key: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("queued", || locks.snapshot().waiting > before).await;
    waiter
}

/// Completes when the manager has no waiters, holders or pending releases.
pub(crate) async fn nothing_is_waited_for(locks: &LockManager) {
    within(SECOND, "idle", || locks.snapshot().is_idle()).await;
}

/// Acquires a lock as soon as the server is available again.
pub(crate) async fn acquired_again(locks: &LockManager, key: &str) -> LockGuard {
    let guard = locks.acquire(key).wait(10 * SECOND).await;
    guard.expect("the server is available again")
}
