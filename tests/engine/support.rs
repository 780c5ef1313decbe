//! Managers, units of time and lookups that several modules need.

use std::time::Duration;

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
