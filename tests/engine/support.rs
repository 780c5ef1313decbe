//! Managers, units of time and lookups that several modules need.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{Backend, LockKey, LockManager};

use crate::simulated::Simulated;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns a manager on `backend`, as a process of its own would have.
pub(crate) fn manager(backend: &(impl Backend + Clone)) -> LockManager {
    LockManager::builder(backend.clone()).build().unwrap()
}

/// Returns `true` if the store has no holder of the key.
pub(crate) async fn is_free(wire: &Simulated, key: &str) -> bool {
    let holder = wire.memory.inspect(&LockKey::new(key)).await;
    holder.unwrap().is_none()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future on this thread, outside any runtime, until it is ready.
pub(crate) fn park_until_ready<F: Future>(limit: Duration, future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let end = Instant::now() + limit;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "pending after {limit:?}");
        thread::park_timeout(left);
    }
}
