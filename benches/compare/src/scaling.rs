//! tower-lock with very many locks, waiters and keys. Each case has its own process, because freed memory
//! would be available to the next case. Each process prints its figures and ends.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use memory_stats::memory_stats;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_lock::{LockGuard, LockManager, RedisBackend};

use crate::work::Failure;

pub(crate) const HELD: usize = 100_000;
/// The default TTL. The watchdog renews at each third of it.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const WINDOW: Duration = Duration::from_secs(30);
pub(crate) const WAITERS: usize = 10_000;
pub(crate) const KEYS: usize = 1_000_000;

const IN_FLIGHT: usize = 64;

pub(crate) async fn scale(what: &str, url: &str) -> Result<(), Failure> {
    match what {
        "waiting" => waiting(url).await,
        "tasks" => tasks(url).await,
        "passed" => passed(url).await,
        _ => Err("nothing of that name".into()),
    }
}

async fn manager(url: &str) -> Result<LockManager, Failure> {
    let backend = RedisBackend::builder(url).connect().await?;
    let locks = LockManager::builder(backend)
        .watchdog_timeout(LEASE)
        .max_waiters_per_key(WAITERS)
        .build()?;
    // The setup of connections, tasks and code is not part of the cost.
    let first = locks.acquire("first").await?;
    let second = tokio::spawn(locks.acquire("first").into_future());
    while locks.snapshot().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    drop(first);
    drop(second.await??);
    while !locks.snapshot().is_idle() {
        sleep(Duration::from_millis(1)).await;
    }
    Ok(locks)
}

/// Holds so many locks for so many seconds. Measures the bytes for all of them, the share of a core that renewals take, and
/// the number of lost locks.
pub(crate) async fn hold(count: &str, seconds: &str, url: &str) -> Result<(), Failure> {
    let (count, window) = (count.parse()?, Duration::from_secs(seconds.parse()?));
    let locks = manager(url).await?;
    let before = resident();
    let mut tasks = JoinSet::new();
    for task in 0..IN_FLIGHT {
        tasks.spawn(take(locks.clone(), task, count));
    }
    let mut guards = Vec::with_capacity(IN_FLIGHT);
    while let Some(taken) = tasks.join_next().await {
        guards.push(taken??);
    }
    let bytes = resident().saturating_sub(before);
    let busy = processor_time();
    sleep(window).await;
    let share = (processor_time() - busy).as_secs_f64() / window.as_secs_f64();
    let lost = (guards.iter().flatten()).filter(|guard| !guard.is_held());
    let lost = lost.count();
    println!("done {bytes} {share} {lost}");
    Ok(())
}

async fn take(locks: LockManager, task: usize, count: usize) -> Result<Vec<LockGuard>, Failure> {
    let mut guards = Vec::with_capacity(count.div_ceil(IN_FLIGHT));
    for n in (task..count).step_by(IN_FLIGHT) {
        guards.push(locks.acquire(format!("held:{n}")).await?);
    }
    Ok(guards)
}

/// Measures the bytes per waiter for one key, all in one task.
async fn waiting(url: &str) -> Result<(), Failure> {
    let locks = manager(url).await?;
    let guard = locks.acquire("wanted").await?;
    let before = resident();
    let acquire = || locks.acquire("wanted").wait_forever().into_future();
    let mut waiters: Vec<_> = std::iter::repeat_with(acquire).take(WAITERS).collect();
    poll_fn(|cx| {
        for waiter in &mut waiters {
            assert!(Pin::new(waiter).poll(cx).is_pending(), "it is held");
        }
        Poll::Ready(())
    })
    .await;
    let bytes = resident().saturating_sub(before) / WAITERS;
    println!("done {bytes}");
    drop(guard);
    Ok(())
}

/// Measures the bytes per waiter for one key, one task each.
async fn tasks(url: &str) -> Result<(), Failure> {
    let locks = manager(url).await?;
    let guard = locks.acquire("wanted").await?;
    let before = resident();
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS {
        tasks.spawn(locks.acquire("wanted").wait_forever().into_future());
    }
    while locks.snapshot().waiting < WAITERS {
        sleep(Duration::from_millis(1)).await;
    }
    let bytes = resident().saturating_sub(before) / WAITERS;
    println!("done {bytes}");
    drop(guard);
    Ok(())
}

/// Measures how many more bytes are in use after very many keys than after a few.
async fn passed(url: &str) -> Result<(), Failure> {
    let locks = manager(url).await?;
    pass(&locks, "few", KEYS / 20).await?;
    let before = resident();
    pass(&locks, "many", KEYS).await?;
    let more = resident().saturating_sub(before);
    println!("done {more}");
    Ok(())
}

async fn pass(locks: &LockManager, name: &'static str, keys: usize) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for task in 0..IN_FLIGHT {
        let locks = locks.clone();
        tasks.spawn(async move {
            for n in (task..keys).step_by(IN_FLIGHT) {
                drop(locks.acquire(format!("{name}:{n}")).await?);
            }
            Ok::<_, tower_lock::Error>(())
        });
    }
    while let Some(passed) = tasks.join_next().await {
        passed??;
    }
    while !locks.snapshot().is_idle() {
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Returns the resident memory of the process in bytes.
pub(crate) fn resident() -> usize {
    memory_stats().expect("this system reports it").physical_mem
}

pub(crate) fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("this system reports it");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}
