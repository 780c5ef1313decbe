//! Locks in a runtime without timers.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tower_lock::{LockManager, Memory};

use crate::support::simulated::Simulated;

fn without_timers() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

#[test]
fn acquire_works_without_timers() {
    let runtime = without_timers();
    let remote = LockManager::builder(Simulated::new(Duration::from_millis(1)));
    for builder in [LockManager::builder(Memory::new()), remote] {
        let locks = builder.build().unwrap();
        let acquire = || locks.acquire("k");
        let both = locks.acquire(["k", "b"]).into_future();
        let forever = acquire().wait_forever().into_future();
        let once = acquire().no_wait().into_future();
        for acquire in [acquire().into_future(), forever, once, both] {
            let guard = runtime.block_on(acquire).unwrap();
            let busy = locks.acquire("k").wait(Duration::from_millis(20));
            assert!(runtime.block_on(busy.into_future()).unwrap_err().is_busy());
            runtime.block_on(guard.release()).unwrap();
        }
        assert!(locks.snapshot().is_idle());
    }
}

#[test]
fn inspection_works_without_timers() {
    let locks = LockManager::builder(Simulated::new(Duration::from_millis(1)));
    let locks = locks.build().unwrap();
    let runtime = without_timers();
    assert!(runtime.block_on(locks.inspect("k")).unwrap().is_none());
    assert!(!runtime.block_on(locks.is_locked("k")).unwrap());
    assert!(!runtime.block_on(locks.force_release("k")).unwrap());
}

#[test]
fn loss_is_noticed_without_timers() {
    let with_timers = Builder::new_current_thread().enable_time().build().unwrap();
    let locks = LockManager::in_memory();
    let lease = Duration::from_millis(50);
    let held = with_timers.block_on(locks.acquire("k").lease(lease).into_future());
    let held = held.unwrap();
    without_timers().block_on(held.lost());
    assert!(!held.is_held());
}
