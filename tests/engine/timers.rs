//! An acquire in a runtime without timers returns an error.

use std::error::Error as _;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tower_lock::{Error, ErrorKind, LockManager, Memory};

use crate::support::simulated::Simulated;

fn without_timers() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn names_enable_time(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let mut texts = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        texts.push(cause.to_string());
        source = cause.source();
    }
    let texts = texts.join(": ");
    assert!(texts.contains("enable_time"), "{texts}");
}

#[test]
fn acquire_without_timers_names_enable_time() {
    let runtime = without_timers();
    let remote = LockManager::builder(Simulated::new(Duration::from_millis(1)));
    for builder in [LockManager::builder(Memory::new()), remote] {
        let locks = builder.build().unwrap();
        let acquire = || locks.acquire("k");
        let both = locks.acquire(["a", "b"]).into_future();
        let forever = acquire().wait_forever().into_future();
        let once = acquire().no_wait().into_future();
        for acquire in [acquire().into_future(), forever, once, both] {
            names_enable_time(&runtime.block_on(acquire).unwrap_err());
            assert!(locks.snapshot().is_idle());
        }
    }
}

#[test]
fn wait_without_timers_names_enable_time() {
    let with_timers = Builder::new_current_thread().enable_time().build().unwrap();
    let locks = LockManager::in_memory();
    let held = with_timers.block_on(locks.acquire("k").into_future());
    let _held = held.unwrap();
    let waiting = locks.acquire("k").into_future();
    names_enable_time(&without_timers().block_on(waiting).unwrap_err());
    assert_eq!(locks.snapshot().waiting, 0);
}

#[test]
fn inspection_without_timers_names_enable_time() {
    let locks = LockManager::builder(Simulated::new(Duration::from_millis(1)));
    let locks = locks.build().unwrap();
    let runtime = without_timers();
    names_enable_time(&runtime.block_on(locks.inspect("k")).unwrap_err());
    names_enable_time(&runtime.block_on(locks.is_locked("k")).unwrap_err());
    names_enable_time(&runtime.block_on(locks.force_release("k")).unwrap_err());
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
