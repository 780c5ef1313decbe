//! `force_release` marks the guard lost before another acquire is granted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Builder;
use tokio::time::Instant;
use tower_lock::{LockGuard, LockManager};

use crate::support::engine::PATIENCE;

const ROUNDS: u64 = 200_000;
const LIMIT: Duration = Duration::from_secs(5);
/// Threads that share a busy core need longer for these.
const AT_LEAST: u64 = 1_000;

/// One thread releases the key repeatedly by force, and two others acquire it as soon as it is free.
#[test]
fn forced_guard_is_lost_before_next_grant() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let locks = LockManager::in_memory();
    let latest: Mutex<Option<LockGuard>> = Mutex::new(None);
    let (rounds, overlaps) = (AtomicU64::new(0), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let end = Instant::now() + LIMIT;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let _in_runtime = runtime.enter();
                while !over.load(Ordering::Relaxed) {
                    let acquire = locks.acquire("k").no_wait().into_future();
                    let Some(Ok(guard)) = acquire.now_or_never() else {
                        // On a busy core, the thread that releases runs sooner.
                        thread::yield_now();
                        continue;
                    };
                    let mut latest = latest.lock().unwrap();
                    // The other thread may have stored a later grant in between.
                    let newest = match latest.take() {
                        Some(other) if other.fencing_token() > guard.fencing_token() => {
                            overlaps.fetch_add(u64::from(guard.is_held()), Ordering::Relaxed);
                            other
                        }
                        other => {
                            let held = other.is_some_and(|other| other.is_held());
                            overlaps.fetch_add(u64::from(held), Ordering::Relaxed);
                            guard
                        }
                    };
                    *latest = Some(newest);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _in_runtime = runtime.enter();
        let wanted = || match Instant::now() {
            now if now < end => ROUNDS,
            now if now < end + 3 * PATIENCE => AT_LEAST,
            _ => 0,
        };
        while rounds.load(Ordering::Relaxed) < wanted() {
            let forced = locks.force_release("k").now_or_never();
            forced.expect("memory replies at once").unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    let rounds = rounds.into_inner();
    assert_eq!(overlaps.into_inner(), 0, "overlaps in {rounds} rounds");
    assert!(rounds >= AT_LEAST, "{rounds} rounds");
}
