//! What an acquire and its release cost, on memory. The cost is the same with all features and with none.

use tower_lock::LockManager;

use crate::allocations;

const TIMES: u64 = 1_000;

/// The grant. The lane uses the box of the last one.
const PER_LOCK: u64 = 1;

#[tokio::test(start_paused = true)]
async fn reports_allocate_nothing_per_acquire() {
    let locks = LockManager::in_memory();
    let acquire = async || {
        for _ in 0..TIMES {
            drop(locks.acquire("k").name("orders").await.unwrap());
        }
    };
    // The first use of a name allocates its counts.
    acquire().await;
    let count = allocations(acquire()).await;
    assert_eq!(count / TIMES, PER_LOCK, "{count}");
}
