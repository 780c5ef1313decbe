//! A task of which one runs at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the task runs.
#[derive(Debug, Default)]
pub(crate) struct OneTask(Arc<AtomicBool>);

/// Held by the task. Another one can start after the drop, also if the runtime of this one ends.
pub(crate) struct Running(Arc<AtomicBool>);

impl OneTask {
    /// Returns what the caller's task has to hold, or `None` if one runs. A task that ends because it has nothing to do must
    /// check that again after the drop: a call in between found it running.
    pub(crate) fn start(&self) -> Option<Running> {
        let runs = self.0.swap(true, Ordering::SeqCst);
        (!runs).then(|| Running(Arc::clone(&self.0)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
