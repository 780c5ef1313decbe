//! The cost of short leases beside 100,000 held locks.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tower_lock::{LockGuard, LockManager, Memory};

const HELD: usize = 100_000;
/// 130 leases per second.
const PAUSE: Duration = Duration::from_nanos(1_000_000_000 / 130);
const LEASES: u32 = 130;
const LEASE: Duration = Duration::from_millis(20);
/// How much more CPU time the short leases may use beside the held locks, which also leave them cold caches: four times beside
/// the processes of other tests.
const LIMIT: u32 = 8;

/// The CPU time of this thread, which runs all tasks of the runtime.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = stat.split_whitespace().next().unwrap().parse().unwrap();
    Duration::from_nanos(nanos)
}

/// Returns the least CPU time of a short lease. Cold caches and other programs only add to it.
async fn least_cost(locks: &LockManager) -> Duration {
    let mut least = Duration::MAX;
    for name in ["first", "second", "third"] {
        least = least.min(cost(locks, name).await);
    }
    least
}

/// Returns the CPU time of a short lease.
async fn cost(locks: &LockManager, name: &str) -> Duration {
    let cpu = cpu_time();
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for lease in 0..LEASES {
        ticks.tick().await;
        let acquire = locks.acquire(format!("{name}{lease}")).lease(LEASE);
        let guard: LockGuard = acquire.await.unwrap();
        tokio::spawn(async move { guard.lost().await });
    }
    (cpu_time() - cpu) / LEASES
}

/// Returns a manager whose background work runs on this thread, too.
fn on_this_thread() -> LockManager {
    let locks = LockManager::builder(Memory::new()).runtime(Handle::current());
    locks.build().unwrap()
}

#[tokio::test]
async fn held_locks_do_not_slow_short_leases() {
    let alone = least_cost(&on_this_thread()).await;
    let locks = on_this_thread();
    let mut guards = Vec::with_capacity(HELD);
    for n in 0..HELD {
        guards.push(locks.acquire(format!("held{n}")).await.unwrap());
    }
    // Renewals are due 10 s after the grant: none falls into the measured span.
    sleep(Duration::from_millis(100)).await;
    let beside = least_cost(&locks).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    println!("{beside:?} of CPU time per lease, alone {alone:?}");
    assert!(beside <= LIMIT * alone, "{beside:?}, alone {alone:?}");
}

/// All leases are due in one round, as after an outage of the backend.
#[test]
fn renewal_of_all_locks_needs_little_memory() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    let locks = runtime.block_on(async { LockManager::in_memory() });
    let mut guards = Vec::with_capacity(HELD);
    runtime.block_on(async {
        for n in 0..HELD {
            guards.push(locks.acquire(format!("held{n}")).await.unwrap());
        }
    });
    // A renewal is due 10 s after the one before.
    for _ in 0..3 {
        let renewal = allocation_counter::measure(|| {
            runtime.block_on(async { sleep(Duration::from_secs(10)).await });
        });
        let kept = renewal.bytes_current / i64::try_from(HELD).unwrap();
        let most = renewal.bytes_max / HELD as u64;
        // The heaps of the index have room for two entries per lock.
        assert!(kept <= 32 && most <= 100, "{kept} and {most} bytes a lock");
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
}
