//! The end of a manager: it serves the waiters, lets holders finish, and ends with the last one.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower_lock::manager::{Acquire, Snapshot};
use tower_lock::{Error, LockGuard, LockManager, Memory};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Fault, Simulated, managers};

/// Starts an acquire, and returns when it waits.
async fn begin(acquire: Acquire) -> JoinHandle<Result<LockGuard, Error>> {
    let acquire = tokio::spawn(acquire.into_future());
    sleep(10 * MS).await;
    assert!(!acquire.is_finished());
    acquire
}

async fn shut_down(locks: &LockManager, grace: Duration) -> JoinHandle<Snapshot> {
    let locks = locks.clone();
    let shutdown = tokio::spawn(async move { locks.shutdown(grace).await });
    sleep(10 * MS).await;
    shutdown
}

#[tokio::test(start_paused = true)]
async fn shutdown_serves_waiters_with_deadline() {
    for locks in managers(30 * SECOND) {
        let guard = locks.acquire("k").await.unwrap();
        let first = begin(locks.acquire("k").wait(300 * SECOND)).await;
        let forever = begin(locks.acquire("k").wait_forever()).await;
        let both = begin(locks.acquire(["j", "k"]).wait_forever()).await;
        let last = begin(locks.acquire("k").wait(300 * SECOND)).await;
        let late = begin(locks.acquire("k").wait(50 * SECOND)).await;
        let start = Instant::now();
        let shutdown = shut_down(&locks, 600 * SECOND).await;
        for endless in [forever, both] {
            assert!(endless.is_finished(), "it has no deadline");
            assert!(endless.await.unwrap().unwrap_err().is_shutting_down());
        }
        for new in [locks.acquire("k"), locks.acquire("other")] {
            assert!(new.await.unwrap_err().is_shutting_down());
        }
        // The holder is renewed and can re-enter.
        sleep(100 * SECOND).await;
        assert!(late.await.unwrap().unwrap_err().is_busy());
        assert!(guard.is_held());
        drop(locks.acquire("k").owner(guard.owner()).await.unwrap());
        drop(guard);
        for waiter in [first, last] {
            let guard = waiter.await.unwrap().unwrap();
            sleep(40 * SECOND).await;
            assert!(guard.is_held() && !shutdown.is_finished());
        }
        assert!(shutdown.await.unwrap().is_idle());
        assert_eq!(start.elapsed().as_secs(), 180);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_serves_waiter_for_other_process() {
    let memory = Memory::new();
    let wire = Simulated::new(MS);
    let pairs = [
        [manager_on(&memory), manager_on(&memory)],
        [manager_on(&wire), manager_on(&wire.another_wire())],
    ];
    for [here, there] in pairs {
        let held = there.acquire("k").await.unwrap();
        let waiter = begin(here.acquire("k").wait(60 * SECOND)).await;
        let forever = begin(here.acquire("k").wait_forever()).await;
        let shutdown = shut_down(&here, 600 * SECOND).await;
        assert!(forever.await.unwrap().unwrap_err().is_shutting_down());
        sleep(30 * SECOND).await;
        drop(held);
        drop(waiter.await.unwrap().unwrap());
        assert!(shutdown.await.unwrap().is_idle());
        let next = there.acquire("k").wait(100 * MS).await;
        assert!(next.is_ok(), "no place is left in the queue: {next:?}");
    }
}

/// An endless exclusive waiter is ahead of readers.
#[tokio::test(start_paused = true)]
async fn rejected_writer_lets_readers_share() {
    let locks = manager_on(&Simulated::new(MS));
    let reader = locks.acquire("k").shared().await.unwrap();
    let writer = begin(locks.acquire("k").wait_forever()).await;
    let next = begin(locks.acquire("k").shared().wait(60 * SECOND)).await;
    let shutdown = shut_down(&locks, 60 * SECOND).await;
    assert!(writer.await.unwrap().unwrap_err().is_shutting_down());
    let next = tokio::time::timeout(SECOND, next).await.expect("it shares");
    assert!(reader.is_held());
    drop((reader, next.unwrap().unwrap()));
    assert!(shutdown.await.unwrap().is_idle());
}

#[tokio::test(start_paused = true)]
async fn shutdown_serves_waiter_for_several_keys() {
    for locks in managers(30 * SECOND) {
        let [a, b] = ["a", "b"].map(|key| locks.acquire(key));
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        let waiter = begin(locks.acquire(["a", "b"]).wait(60 * SECOND)).await;
        let shutdown = shut_down(&locks, 600 * SECOND).await;
        drop(a);
        sleep(SECOND).await;
        assert!(!waiter.is_finished(), "it waits for the other key");
        drop(b);
        drop(waiter.await.unwrap().unwrap());
        assert!(shutdown.await.unwrap().is_idle());
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_rejected_before_end_of_grace() {
    for grace in [10 * SECOND, 300 * MS, Duration::ZERO] {
        for locks in managers(30 * SECOND) {
            let guard = locks.acquire("k").await.unwrap();
            let waiter = begin(locks.acquire("k").wait(60 * SECOND)).await;
            // Its second key is asked for after the rejection of all waiters.
            let other = locks.acquire("a").await.unwrap();
            let start = Instant::now();
            let shutdown = tokio::spawn({
                let locks = locks.clone();
                async move { locks.shutdown(grace).await }
            });
            assert!(waiter.await.unwrap().unwrap_err().is_shutting_down());
            let served = grace - (grace / 10).min(500 * MS);
            assert!((served..served + 50 * MS).contains(&start.elapsed()));
            let again = locks.acquire(["a", "k"]).owner(other.owner());
            assert!(again.await.unwrap_err().is_shutting_down());
            let left = shutdown.await.unwrap();
            assert_eq!((left.held, left.waiting), (2, 0));
            assert!((grace..grace + 50 * MS).contains(&start.elapsed()));
            assert!(guard.is_held());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silent_backend_ends_shutdown_after_timeout() {
    for fault in [Fault::Hung, Fault::CommandLost] {
        let wire = Simulated::new(MS);
        let locks = manager_on(&wire);
        let guards = [
            locks.acquire("a").await.unwrap(),
            locks.acquire("b").await.unwrap(),
        ];
        let shutdown = shut_down(&locks, 60 * SECOND).await;
        wire.down(Some(fault));
        for guard in guards {
            sleep(2 * SECOND).await;
            assert!(!shutdown.is_finished(), "{fault:?}: a lock is held");
            drop(guard);
        }
        let start = Instant::now();
        assert_eq!(shutdown.await.unwrap().unreleased, 2, "{fault:?}");
        let took = start.elapsed();
        assert!((500 * MS..550 * MS).contains(&took), "{fault:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_backend_gets_releases_within_grace() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guard = locks.acquire("k").await.unwrap();
    let shutdown = shut_down(&locks, 20 * SECOND).await;
    wire.down(Some(Fault::Refused));
    drop(guard);
    sleep(9 * SECOND).await;
    assert!(!shutdown.is_finished(), "the backend replies");
    wire.down(None);
    assert!(shutdown.await.unwrap().is_idle());
}
