//! Tests in which another runtime stops after its work, in real time.

use std::pin::Pin;
use std::thread;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, sleep};
use tower_lock::manager::{Acquire, AcquireFuture};
use tower_lock::{LockManager, LockManagerBuilder};

use super::super::stores::{Store, stores};
use crate::support::engine::MS;
pub(crate) use crate::support::other_runtime::{Fate, Other, current_thread};

/// Leaves time for a second renewal after a reply that a busy machine delays beyond its timeout.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The poll interval of a waiter with jitter.
pub(crate) const POLL: Duration = Duration::from_millis(1200);
/// The tolerance for a busy machine.
pub(crate) const LATE: Duration = Duration::from_millis(800);
/// A duration longer than every bound in this file.
pub(crate) const WAIT: Duration = Duration::from_secs(5);

/// Runs the test for each fate on each store concurrently. The thread name contains both.
pub(crate) fn in_each_case(test: impl Fn(Fate, &LockManager, &LockManager) + Sync) {
    thread::scope(|scope| {
        for fate in [Fate::Idles, Fate::Blocks, Fate::Ends, Fate::ThreadsEnd] {
            for Store {
                name,
                processes,
                kept,
            } in stores()
            {
                let case = thread::Builder::new().name(format!("{fate:?} on {name}"));
                let test = &test;
                let spawned = case.spawn_scoped(scope, move || {
                    let [here, there] = processes.map(built);
                    test(fate, &here, &there);
                    drop(kept);
                });
                spawned.unwrap();
            }
        }
    });
}

/// Runs the test on each store concurrently, with two managers as of two processes.
pub(crate) fn on_each_store(test: impl Fn(&LockManager, &LockManager) + Sync) {
    thread::scope(|scope| {
        for Store {
            name,
            processes,
            kept,
        } in stores()
        {
            let case = thread::Builder::new().name(format!("on {name}"));
            let test = &test;
            let spawned = case.spawn_scoped(scope, move || {
                let [here, there] = processes.map(built);
                test(&here, &there);
                drop(kept);
            });
            spawned.unwrap();
        }
    });
}

pub(crate) fn built(builder: LockManagerBuilder) -> LockManager {
    builder.watchdog_timeout(LEASE).build().unwrap()
}

/// Asserts that the key is granted within the limit.
pub(crate) fn is_served(locks: &LockManager, key: &str, limit: Duration) {
    let acquire = locks.acquire(key).wait(WAIT).into_future();
    is_served_by(limit, acquire);
}

pub(crate) fn is_served_by(limit: Duration, acquire: AcquireFuture) {
    let start = Instant::now();
    let served = current_thread().block_on(acquire);
    let waited = start.elapsed();
    let guard = served.unwrap_or_else(|error| panic!("{error} after {waited:?}"));
    assert!(guard.is_held());
    assert!(waited <= limit + LATE, "served after {waited:?}");
}

/// A pending acquire.
pub(crate) struct Waiting(pub(crate) Pin<Box<AcquireFuture>>);

pub(crate) async fn polled(acquire: Acquire, times: usize) -> Waiting {
    let mut acquire = Box::pin(acquire.into_future());
    assert!(poll!(&mut acquire).is_pending());
    for _ in 1..times {
        sleep(5 * MS).await;
        assert!(poll!(&mut acquire).is_pending());
    }
    Waiting(acquire)
}

/// Polls an acquire until its first attempt has failed and it has a place in the queue.
pub(crate) async fn queued(acquire: Acquire) -> Waiting {
    let waiting = polled(acquire, 5).await;
    sleep(5 * MS).await;
    waiting
}
