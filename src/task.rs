//! The one place that spawns.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;

/// Starts background tasks, also from a `Drop` outside of any runtime.
///
/// Remembers the runtime it was last used on. Where there is none, or it is gone, the task is
/// dropped unstarted: nothing blocks, nothing panics, and the leases run out.
#[derive(Debug, Default)]
pub(crate) struct Spawner {
    last: Mutex<Option<Handle>>,
}

impl Spawner {
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match Handle::try_current() {
            Ok(current) => {
                *last = Some(current.clone());
                current
            }
            Err(_) => match &*last {
                Some(handle) => handle.clone(),
                None => return,
            },
        };
        drop(last);
        // The task is detached; its outcome reaches whom it concerns through its own state.
        drop(handle.spawn(task));
    }
}
