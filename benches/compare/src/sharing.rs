//! Readers that join one shared lock in one process. Each case has its own process, prints one figure and ends.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::sync::RwLock;
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;
use tower_lock::{LockGuard, LockManager};

use crate::scaling::resident;
use crate::work::Failure;

pub(crate) const TASKS: usize = 64;
pub(crate) const READERS: usize = 100_000;

const WINDOW: Duration = Duration::from_millis(500);
/// The pairs of a task between two looks at the clock.
const PAIRS: u64 = 100;

pub(crate) async fn share(what: &str, url: &str) -> Result<(), Failure> {
    let figure = match what {
        "redis" => joins(LockManager::connect(url).await?).await?,
        "memory" => joins(LockManager::in_memory()).await?,
        "request" => requests(LockManager::in_memory()).await?,
        "table" => table(LockManager::in_memory()).await?,
        "rwlock" => rw_lock().await?,
        "readers" => readers(url).await?,
        _ => return Err("nothing of that name".into()),
    };
    println!("done {figure}");
    Ok(())
}

/// Returns the pairs per second of readers that join the lease of another. Each holds the lock until the other tasks
/// have run.
async fn joins(locks: LockManager) -> Result<f64, Failure> {
    let first = locks.acquire("joined").shared().await?;
    let rate = rate(move || {
        let locks = locks.clone();
        async move {
            let guard = locks.acquire("joined").shared().await?;
            yield_now().await;
            drop(guard);
            Ok(())
        }
    });
    let rate = rate.await;
    drop(first);
    rate
}

/// Returns the same of requests that are dropped before their first poll, so that they take no lock. Reads the clocks as a
/// join does, to check the lease, and as its end does, to measure the hold.
async fn requests(locks: LockManager) -> Result<f64, Failure> {
    let rate = rate(move || {
        let locks = locks.clone();
        async move {
            let request = black_box(locks.acquire("joined").shared().into_future());
            read_clocks()?;
            yield_now().await;
            read_clocks()?;
            drop(request);
            Ok(())
        }
    });
    rate.await
}

/// As [`requests`]. In addition, each task has an entry in a table from its request to its end, as the owner of a join
/// has.
async fn table(locks: LockManager) -> Result<f64, Failure> {
    let (table, next) = (Arc::default(), Arc::new(AtomicU64::new(0)));
    let rate = rate(move || {
        let (locks, next) = (locks.clone(), Arc::clone(&next));
        let table: Arc<Mutex<HashMap<u64, Arc<Entry>>>> = Arc::clone(&table);
        async move {
            let request = black_box(locks.acquire("joined").shared().into_future());
            read_clocks()?;
            let task = next.fetch_add(1, Ordering::Relaxed);
            let entry = Arc::new([0; ENTRY]);
            let shared = Arc::clone(&entry);
            table.lock().map_err(|_| "poisoned")?.insert(task, shared);
            yield_now().await;
            read_clocks()?;
            let removed = table.lock().map_err(|_| "poisoned")?.remove(&task);
            drop((request, entry, removed));
            Ok(())
        }
    });
    rate.await
}

/// The size of an entry in bytes.
const ENTRY: usize = 160;
type Entry = [u8; ENTRY];

/// Reads the clock of tokio, and the one that includes the time in which the machine is suspended.
fn read_clocks() -> Result<(), Failure> {
    black_box((Instant::now(), clock_gettime(ClockId::CLOCK_BOOTTIME)?));
    Ok(())
}

/// Returns the same of a lock in the process.
async fn rw_lock() -> Result<f64, Failure> {
    let lock = Arc::new(RwLock::new(()));
    let first = Arc::clone(&lock).read_owned().await;
    let rate = rate(move || {
        let lock = Arc::clone(&lock);
        async move {
            let guard = lock.read_owned().await;
            yield_now().await;
            drop(guard);
            Ok(())
        }
    });
    let rate = rate.await;
    drop(first);
    rate
}

async fn rate<P>(pair: impl Fn() -> P + Clone + Send + 'static) -> Result<f64, Failure>
where
    P: Future<Output = Result<(), Failure>> + Send,
{
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let pair = pair.clone();
        tasks.spawn(async move {
            let mut pairs = 0;
            while start.elapsed() < WINDOW {
                for _ in 0..PAIRS {
                    pair().await?;
                }
                pairs += PAIRS;
            }
            Ok::<_, Failure>(pairs)
        });
    }
    let mut pairs = 0;
    while let Some(task) = tasks.join_next().await {
        pairs += task??;
    }
    Ok(pairs as f64 / start.elapsed().as_secs_f64())
}

/// Returns the bytes of each reader that has joined one lease, without its guard.
async fn readers(url: &str) -> Result<f64, Failure> {
    let locks = LockManager::connect(url).await?;
    // The setup of connections, tasks and code is not part of the cost.
    let first = locks.acquire("joined").shared().await?;
    let mut guards = Vec::with_capacity(READERS);
    let before = resident();
    for _ in 0..READERS {
        guards.push(locks.acquire("joined").shared().await?);
    }
    let bytes = resident().saturating_sub(before) as f64 / READERS as f64;
    let bytes = bytes - size_of::<LockGuard>() as f64;
    drop((first, guards));
    Ok(bytes)
}
