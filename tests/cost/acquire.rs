//! What an acquire and its release allocate, on memory. The numbers are the same with all features and with none.

use std::future::IntoFuture as _;

use futures_util::poll;
use tower_lock::LockManager;
use tower_lock::manager::Acquire;

use crate::allocations;

const TIMES: u64 = 1_000;

/// The grant. The lane uses the box of the last one.
const PER_LOCK: u64 = 1;
/// The grant and its waiter.
const PER_HAND_OFF: u64 = 2;
/// The error.
const PER_BUSY: u64 = 1;
/// The key, the error and its cause.
const PER_INVALID: u64 = 3;

/// Expects that each of `TIMES` rounds allocates `each` times.
async fn expect(each: u64, rounds: impl AsyncFn()) {
    // The first use of a name allocates its counts.
    rounds().await;
    let count = allocations(rounds()).await;
    // A table may grow, once for many rounds.
    let expected = each * TIMES..=each * TIMES + 10;
    assert!(expected.contains(&count), "{count} in {TIMES} rounds");
}

fn acquire(locks: &LockManager) -> Acquire {
    locks.acquire("k").name("orders")
}

#[tokio::test(start_paused = true)]
async fn reports_allocate_nothing_per_acquire() {
    let locks = LockManager::in_memory();
    expect(PER_LOCK, async || {
        for _ in 0..TIMES {
            drop(acquire(&locks).await.unwrap());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reports_allocate_nothing_per_hand_off() {
    let locks = LockManager::in_memory();
    expect(PER_HAND_OFF, async || {
        let mut guard = acquire(&locks).await.unwrap();
        for _ in 0..TIMES {
            let mut next = acquire(&locks).into_future();
            assert!(poll!(&mut next).is_pending());
            drop(guard);
            guard = next.await.unwrap();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reports_allocate_nothing_per_failure() {
    let locks = LockManager::in_memory();
    let _guard = acquire(&locks).await.unwrap();
    expect(PER_BUSY, async || {
        for _ in 0..TIMES {
            drop(acquire(&locks).no_wait().await.unwrap_err());
        }
    })
    .await;
    expect(PER_INVALID, async || {
        for _ in 0..TIMES {
            drop(locks.acquire("").name("orders").await.unwrap_err());
        }
    })
    .await;
}
