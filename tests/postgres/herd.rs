//! Many processes and one key: how many grants each has, and how long it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_lock::{LockManager, PostgresBackend};

use super::LONG;
use super::support::postgres_server::PostgresServer;
use super::support::protected::Protected;

const HOLD: Duration = Duration::from_millis(5);
/// The owners of each process that wait at the same time.
const OWNERS: usize = 3;
const GRANTS_EACH: usize = 30;

#[derive(Default)]
struct Waits {
    longest: Duration,
    /// The most grants of others during a wait.
    overtaken: usize,
}

/// The grants in the longest time until a waiter is in the queue, on a busy machine: two commands.
const WHILE_ENTERING: usize = 20;

/// The share of each process, and the place of each waiter, do not depend on the speed of the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn herd_shares_grants_in_order() {
    for managers in [2, 8] {
        herd(managers).await;
    }
}

pub(super) async fn herd(managers: usize) {
    let server = PostgresServer::start(&["max_connections=200"]).await;
    let (protected, grants) = (
        Arc::new(Protected::default()),
        Arc::new(AtomicUsize::new(0)),
    );
    let target = managers * GRANTS_EACH;
    let mut tasks = JoinSet::new();
    let mut all = Vec::new();
    for _ in 0..managers {
        let builder = PostgresBackend::builder(server.url()).relaxed();
        let backend = builder.response_timeout(LONG / 10).connect().await.unwrap();
        all.push(LockManager::builder(backend).build().unwrap());
    }
    let begun = Instant::now();
    for (manager, locks) in all.iter().enumerate() {
        for _ in 0..OWNERS {
            let (locks, protected, grants) =
                (locks.clone(), Arc::clone(&protected), Arc::clone(&grants));
            tasks.spawn(async move {
                let (mut waits, mut count) = (Waits::default(), 0);
                while grants.load(Ordering::SeqCst) < target {
                    let (asked, before) = (Instant::now(), grants.load(Ordering::SeqCst));
                    let guard = locks.acquire("herd").wait(LONG).await.unwrap();
                    let inside = protected.enter(&guard);
                    let now = grants.fetch_add(1, Ordering::SeqCst);
                    waits.longest = waits.longest.max(asked.elapsed());
                    waits.overtaken = waits.overtaken.max(now - before);
                    count += 1;
                    sleep(HOLD).await;
                    drop(inside);
                    drop(guard);
                }
                (manager, count, waits)
            });
        }
    }
    let (mut counts, mut waits) = (vec![0; managers], Waits::default());
    for (manager, count, of) in tasks.join_all().await {
        counts[manager] += count;
        waits.longest = waits.longest.max(of.longest);
        waits.overtaken = waits.overtaken.max(of.overtaken);
    }
    let sum = counts.iter().sum::<usize>();
    let rate = sum as f64 / begun.elapsed().as_secs_f64();
    let least = counts.iter().min().unwrap() * managers * 100 / sum;
    let Waits { longest, overtaken } = waits;
    println!(
        "{managers} processes: {rate:.0} grants/s, least share {least} %, longest wait {longest:.2?}, {overtaken} grants before"
    );
    assert!(least >= 50, "{counts:?}");
    // A turn serves the waiters of its process. One round of turns may have begun, and the next one follows.
    let rounds = 3 * managers * OWNERS;
    assert!(overtaken <= rounds + WHILE_ENTERING, "{overtaken}");
}
