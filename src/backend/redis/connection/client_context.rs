//! The settings and services that all connections of a backend share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, millis, unavailable};
use crate::backend::redis::notify::Recovery;
use crate::mutex::Mutex;
use crate::task::{Background, Runtime};

#[derive(Debug)]
pub(crate) struct ClientContext {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// The runtime of a caller that drives the last connection for commands, if one does.
    pub(crate) near: Mutex<Option<Runtime>>,
    pub(crate) recovery: Recovery,
    /// In milliseconds.
    pub(crate) longest_lease: AtomicU64,
}

impl ClientContext {
    /// Starts a detached task near the caller, or else in the runtime that drives a connection for commands.
    pub(crate) fn spawn_near_commands<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let near = self.near.lock().clone();
        match near {
            Some(near) if Background.near().is_none() => near.spawn(task),
            _ => drop(Background.spawn_io_near(task)),
        }
    }

    /// Returns the longest lease that any process may have, as far as this one has requested or seen leases.
    pub(crate) fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.longest_lease.load(Ordering::Relaxed))
    }

    /// Records the length of a lease.
    pub(crate) fn saw_lease(&self, ttl: Duration) {
        let ttl = millis(ttl);
        // The load keeps the usual case free of writes.
        if ttl > self.longest_lease.load(Ordering::Relaxed) {
            self.longest_lease.fetch_max(ttl, Ordering::Relaxed);
        }
    }
}

/// Runs a task on the thread of this crate.
///
/// # Cancel safety
///
/// If dropped, the task runs to its end.
pub(crate) async fn in_background<T: Send + 'static>(
    task: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Result<T, BackendError> {
    let output = Background.run(task).await;
    output.unwrap_or_else(|| Err(unavailable(Cause::NoRuntime)))
}

/// Completes with the outcome, or with an error if there is no connection within `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    outcome: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match tokio::time::timeout(limit, outcome).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(unavailable(Cause::NoConnection(limit))),
    }
}
