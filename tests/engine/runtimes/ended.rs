//! Runtimes that end before the manager and the guards that they used.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend;
use tower_lock::{LockKey, LockManager};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::other_runtime::current_thread;
use crate::support::panics::Panics;
use crate::support::simulated::{self, Simulated};

#[test]
fn guard_outliving_runtime_lets_next_one_acquire() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = LockManager::in_memory();
    let waiter = locks.acquire("a").into_future();
    let guard = runtime.block_on(locks.acquire("a").into_future()).unwrap();
    drop(runtime);
    assert!(guard.is_held());
    drop(guard);
    // The lease was never released; the next runtime takes over the lane.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    assert!(runtime.block_on(waiter).unwrap().is_held());
}

#[test]
fn runtime_shut_down_at_any_time_never_panics() {
    // The shutdown drops tasks on this thread as well.
    let panics = Panics::watch();
    for delay in [0, 1, 2, 3, 5, 8, 13, 21] {
        let runtime = panics.watched_runtime(2);
        let wire = Simulated::new(3 * MS);
        let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
        for locks in [here, there] {
            for key in ["a", "b", "c"] {
                for _ in 0..4 {
                    let locks = locks.clone();
                    runtime.spawn(async move {
                        loop {
                            let guard = locks.acquire(key).await;
                            sleep(MS).await;
                            drop(guard);
                        }
                    });
                }
            }
        }
        std::thread::sleep(delay * MS);
        runtime.shutdown_timeout(Duration::from_secs(5));
    }
    assert_eq!(panics.count(), 0);
}

/// The shutdown completes before its grace period ends, without another acquire of the key.
#[test]
fn shutdown_finishes_releases_of_ended_runtime() {
    // The runtime ends before any reply or renewal.
    let lease = 3000 * MS;
    for in_flight in [true, false] {
        let wire = Simulated::new(200 * MS);
        let locks = LockManager::builder(wire.clone());
        let locks = locks.watchdog_timeout(lease).build().unwrap();
        let first = tokio::runtime::Runtime::new().unwrap();
        let guard = first.block_on(async {
            let guard = locks.acquire("a").await.unwrap();
            if !in_flight {
                return Some(guard);
            }
            drop(guard);
            while wire.sent(simulated::Command::Release) == 0 {
                sleep(MS).await;
            }
            None
        });
        drop(first);
        // This drop happens outside any runtime.
        drop(guard);
        let next = tokio::runtime::Runtime::new().unwrap();
        let (since, grace) = (Instant::now(), 3 * lease);
        let left = next.block_on(locks.shutdown(grace));
        assert!(left.is_idle(), "in flight: {in_flight}: {left:?}");
        assert!(since.elapsed() < grace);
        // A release in flight is resent after the end of its runtime.
        let sent = wire.sent(simulated::Command::Release);
        assert_eq!(sent, 1 + usize::from(in_flight));
    }
}

/// A manager in a `static` outlives the runtime of each test. A command that ended with its runtime
/// must not block its key.
#[test]
fn command_of_ended_runtime_blocks_no_acquire() {
    #[derive(Debug, Clone, Copy)]
    enum InFlight {
        Acquire,
        Renewal,
        ReleaseDuringRenewal,
        Release,
        NotEvenRelease,
    }
    let lease = 2000 * MS;
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    for case in [
        InFlight::Acquire,
        InFlight::Renewal,
        InFlight::ReleaseDuringRenewal,
        InFlight::Release,
        InFlight::NotEvenRelease,
    ] {
        let wire = Simulated::new(20 * MS);
        let locks = LockManager::builder(wire.clone());
        let locks = locks.watchdog_timeout(lease).build().unwrap();
        let sent = |command| wire.sent(command) > 0;
        let first = runtime();
        let guard = first.block_on(async {
            let mut guard = None;
            if let InFlight::Acquire = case {
                drop(tokio::spawn(locks.acquire("a").into_future()));
            } else {
                guard = Some(locks.acquire("a").await.unwrap());
            }
            let command = match case {
                InFlight::Acquire => simulated::Command::Acquire,
                InFlight::Renewal | InFlight::ReleaseDuringRenewal => simulated::Command::Renew,
                InFlight::Release => {
                    guard = None;
                    simulated::Command::Release
                }
                InFlight::NotEvenRelease => return guard,
            };
            while !sent(command) {
                sleep(MS).await;
            }
            if let InFlight::ReleaseDuringRenewal = case {
                guard = None;
            }
            guard
        });
        drop(first);
        // This drop happens outside any runtime; then the hand-off budget passes.
        drop(guard);
        std::thread::sleep(110 * MS);
        runtime().block_on(async {
            let once = locks.acquire("a").no_wait().await.map(drop);
            assert!(once.is_ok() || once.is_err_and(|error| error.is_busy()));
            let next = locks.acquire("a").wait(2 * lease).await;
            let next = next.unwrap_or_else(|error| panic!("{case:?}: {error}"));
            let end = Instant::now() + next.remaining();
            while Instant::now() + next.remaining() <= end + 10 * MS {
                assert!(next.is_held(), "{case:?}: not renewed");
                sleep(10 * MS).await;
            }
            next.release().await.unwrap();
            assert!(locks.snapshot().is_idle(), "{case:?}: {locks:?}");
        });
    }
}

/// The task of the lane ended with its runtime.
#[test]
fn no_wait_after_runtime_end_acquires_free_key() {
    let wire = Simulated::new(5 * MS);
    let rt = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (one, two) = (rt(), rt());
    let there = manager_on(&wire.another_wire());
    let locks = manager_on(&wire);
    let held = two.block_on(there.acquire("k").into_future()).unwrap();
    {
        let l = locks.clone();
        one.spawn(async move { drop(l.acquire("k").wait_forever().await) });
    }
    std::thread::sleep(200 * MS);
    one.shutdown_timeout(SECOND);
    two.block_on(async {
        held.release().await.unwrap();
        sleep(100 * MS).await;
        assert!(
            wire.memory
                .inspect(&LockKey::new("k"))
                .await
                .unwrap()
                .is_none()
        );
        for _ in 0..3 {
            drop(locks.acquire("k").no_wait().await);
            sleep(500 * MS).await;
        }
        assert!(
            locks.acquire("k").no_wait().await.is_ok(),
            "a free key stays busy"
        );
    });
}

#[test]
fn lock_of_three_ended_runtimes_expires() {
    let locks = LockManager::in_memory();
    let [first, second, third, stays] = std::array::from_fn(|_| current_thread());
    let other = stays.block_on(async { locks.acquire("other").await.unwrap() });
    let guard = first.block_on(async { locks.acquire("k").await.unwrap() });
    let again = || async { locks.acquire("k").owner(guard.owner()).await.unwrap() };
    let nested = [second.block_on(again()), third.block_on(again())];
    drop((second, third, first));
    assert!(nested.iter().all(|guard| guard.is_held()));
    assert!(other.is_held());
}
