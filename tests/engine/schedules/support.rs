//! A manager with a short lease.

use std::time::Duration;

use tower_lock::LockManager;

use crate::support::simulated::Simulated;

pub(super) fn quick(wire: &Simulated, ttl: Duration) -> LockManager {
    LockManager::builder(wire.clone())
        .watchdog_timeout(ttl)
        .build()
        .unwrap()
}
