//! Background tasks in the runtime of the last caller.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use super::Runtime;

/// Starts background tasks, also from a `Drop` outside of any runtime.
///
/// It remembers the runtime of the last call. Without a runtime, the task is dropped unstarted: no call
/// blocks or panics, and the leases expire.
#[derive(Debug, Default)]
pub(crate) struct Spawner {
    last: Mutex<Option<Runtime>>,
}

impl Spawner {
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(runtime) = self.runtime() {
            runtime.spawn(task);
        }
    }

    /// Returns the runtime of the caller, or else that of the last caller that had one.
    pub(crate) fn runtime(&self) -> Option<Runtime> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = Runtime::current() {
            *last = Some(current);
        }
        last.clone()
    }
}
