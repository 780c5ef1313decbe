//! The cost of short leases beside 100,000 held locks.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tower_lock::{LockGuard, LockManager};

const HELD: usize = 100_000;
/// These make 130 leases per second.
const PAUSE: Duration = Duration::from_nanos(1_000_000_000 / 130);
const LEASE: Duration = Duration::from_millis(20);
const SPAN: Duration = Duration::from_secs(1);
/// How much more CPU time the short leases may use beside the held locks, which also leave them cold caches.
const LIMIT: f64 = 4.0;

/// The CPU time of this thread, which runs all tasks of the runtime.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = stat.split_whitespace().next().unwrap().parse().unwrap();
    Duration::from_nanos(nanos)
}

/// Returns the least share of a core that the short leases use. Cold caches and other programs only add to it.
async fn least_load(locks: &LockManager) -> f64 {
    let mut least = f64::INFINITY;
    for name in ["first", "second", "third"] {
        least = least.min(load(locks, name).await);
    }
    least
}

/// Returns the share of a core that the short leases use.
async fn load(locks: &LockManager, name: &str) -> f64 {
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut leases = 0_u32;
    while start.elapsed() < SPAN {
        ticks.tick().await;
        leases += 1;
        let acquire = locks.acquire(format!("{name}{leases}")).lease(LEASE);
        let guard: LockGuard = acquire.await.unwrap();
        tokio::spawn(async move { guard.lost().await });
    }
    assert!(leases >= 100, "only {leases} leases in {SPAN:?}");
    (cpu_time() - cpu).as_secs_f64() / start.elapsed().as_secs_f64()
}

#[tokio::test]
async fn held_locks_do_not_slow_short_leases() {
    let alone = least_load(&LockManager::in_memory()).await;
    let locks = LockManager::in_memory();
    let mut guards = Vec::with_capacity(HELD);
    for n in 0..HELD {
        guards.push(locks.acquire(format!("held{n}")).await.unwrap());
    }
    // Renewals are due 10 s after the grant: none falls into the measured span.
    sleep(Duration::from_millis(100)).await;
    let beside = least_load(&locks).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    let shares = format!(
        "{:.2} % of a core, alone {:.2} %",
        100.0 * beside,
        100.0 * alone
    );
    println!("{shares}");
    assert!(beside <= LIMIT * alone, "{shares}");
}

/// All leases are due in one round, as after an outage of the backend.
#[test]
fn renewal_of_all_locks_needs_little_memory() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    let locks = LockManager::in_memory();
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
