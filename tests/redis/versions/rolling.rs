//! Processes of older versions beside those of this one: they exclude each other, and all are served. One version has no
//! queue. In another one, the message of a transfer is the grant.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::LockManager;

use super::granting::Granting;
use super::old::Old;
use crate::queue::pooled;
use crate::support::engine::{
    MS, SECOND, eventually, no_subscription_is_left, nothing_is_left, prompt_manager,
};
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_millis(5);
const RUN: Duration = Duration::from_secs(4);

/// The holders' check of mutual exclusion.
#[derive(Default)]
struct Inside {
    taken: AtomicBool,
    counter: AtomicI64,
}

impl Inside {
    /// Holds the lock whose grant has this fencing counter.
    async fn hold(&self, counter: i64) {
        assert!(!self.taken.swap(true, Ordering::SeqCst), "two holders");
        let last = self.counter.swap(counter, Ordering::SeqCst);
        assert!(last <= counter, "counter {counter} after {last}");
        sleep(HOLD).await;
        self.taken.store(false, Ordering::SeqCst);
    }
}

/// The grants of one process.
#[derive(Default)]
struct Served {
    grants: u32,
    longest: Duration,
}

impl Served {
    fn add(&mut self, asked: Instant) {
        self.grants += 1;
        self.longest = self.longest.max(asked.elapsed());
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} grants, {:.0?}", self.grants, self.longest)
    }
}

fn old(url: String, inside: Arc<Inside>, pause: Duration, end: Instant) -> JoinHandle<Served> {
    tokio::spawn(async move {
        let mut served = Served::default();
        let mut process = Old::connect(&url).await;
        while Instant::now() < end {
            let asked = Instant::now();
            let lease = process.acquire().await;
            served.add(asked);
            inside.hold(lease.counter).await;
            process.release(lease).await;
            sleep(pause).await;
        }
        served
    })
}

fn new(
    locks: LockManager,
    inside: Arc<Inside>,
    pause: Duration,
    end: Instant,
) -> JoinHandle<Served> {
    tokio::spawn(async move {
        let mut served = Served::default();
        while Instant::now() < end {
            let asked = Instant::now();
            let guard = locks.acquire("k").wait_forever().await.unwrap();
            served.add(asked);
            // A token is a counter times 256, and the number of hand-offs.
            inside.hold(guard.fencing_token().get() >> 8).await;
            guard.release().await.unwrap();
            sleep(pause).await;
        }
        served
    })
}

/// Runs processes of both versions, each with its pause between two acquires. Returns the grants of each.
async fn side_by_side(pauses_of_old: &[Duration], pauses_of_new: &[Duration]) -> [Vec<Served>; 2] {
    let server = RedisServer::start();
    let inside = Arc::<Inside>::default();
    let mut managers = Vec::new();
    for _ in pauses_of_new {
        managers.push(prompt_manager(server.url(), LEASE).await);
    }
    let end = Instant::now() + RUN;
    let olds: Vec<_> = (pauses_of_old.iter())
        .map(|pause| old(server.url(), Arc::clone(&inside), *pause, end))
        .collect();
    let news: Vec<_> = (managers.iter().zip(pauses_of_new))
        .map(|(locks, pause)| new(locks.clone(), Arc::clone(&inside), *pause, end))
        .collect();
    let mut served = [Vec::new(), Vec::new()];
    for (side, tasks) in [olds, news].into_iter().enumerate() {
        for task in tasks {
            served[side].push(task.await.unwrap());
        }
    }
    eprintln!(
        "old {pauses_of_old:?}: {:?}; new {pauses_of_new:?}: {:?}",
        served[0], served[1]
    );
    let managers: Vec<_> = managers.iter().collect();
    // The queue keeps the turn of the old processes until it expires.
    nothing_is_left(&server, &managers, 7 * SECOND, "the end").await;
    no_subscription_is_left(&server).await;
    served
}

/// Expects that each of these processes waited for at most `limit`, and received a part of an equal share. The part is
/// small: on a busy machine, a process that only polls seldom attempts while the lock is free.
fn assert_served(served: &[Served], equal_share: u32, limit: Duration) {
    for process in served {
        let fair = process.grants * 40 >= equal_share && process.longest < limit;
        assert!(fair, "{process:?} of {equal_share}");
    }
}

fn equal_share([old, new]: &[Vec<Served>; 2]) -> u32 {
    let all = || old.iter().chain(new);
    let processes = u32::try_from(all().count()).unwrap();
    all().map(|process| process.grants).sum::<u32>() / processes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_side_by_side_share_lock() {
    let served = side_by_side(&[10 * MS; 2], &[10 * MS; 2]).await;
    for side in &served {
        assert_served(side, equal_share(&served), 2 * SECOND);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_process_beside_busy_queue_is_served() {
    let served = side_by_side(&[20 * MS], &[Duration::ZERO; 4]).await;
    for side in &served {
        assert_served(side, equal_share(&served), SECOND);
    }
}

/// Processes of the old version acquire again without a pause, at the same moment as waiters in the queue attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_beside_busy_old_processes_is_served() {
    let served = side_by_side(&[Duration::ZERO; 2], &[Duration::ZERO; 2]).await;
    let share = equal_share(&served);
    let [old, new] = served;
    // The old ones race for their turns, so one of them can have most.
    let turns_of_old = Served {
        grants: old.iter().map(|it| it.grants).sum(),
        longest: old.iter().map(|it| it.longest).min().unwrap(),
    };
    assert_served(&[turns_of_old], share, 3 * SECOND);
    assert_served(&new, share, 3 * SECOND);
}

/// The messages of one version have a counter, and are grants for its own processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_with_granting_messages_shares_lock() {
    let server = RedisServer::start();
    let inside = Arc::<Inside>::default();
    let end = Instant::now() + RUN;
    // In the queue, one of three follows another one, and one follows a process of this version.
    let olds: Vec<_> = (0..3)
        .map(|_| {
            let (url, inside) = (server.url(), Arc::clone(&inside));
            tokio::spawn(async move {
                let mut served = Served::default();
                let mut process = Granting::connect(&url).await;
                while Instant::now() < end {
                    let asked = Instant::now();
                    let lease = process.acquire().await;
                    served.add(asked);
                    inside.hold(lease.counter).await;
                    process.release(lease).await;
                }
                (served, process)
            })
        })
        .collect();
    let managers = [(); 2].map(|()| prompt_manager(server.url(), LEASE));
    let managers = futures_util::future::join_all(managers).await;
    // Several waiters enter the queue with the release of the lease before.
    let waiters = managers.iter().chain(&managers);
    let news: Vec<_> = waiters
        .map(|locks| new(locks.clone(), Arc::clone(&inside), Duration::ZERO, end))
        .collect();
    let mut served = [Vec::new(), Vec::new()];
    let (mut by_message, mut confirmed) = (0, 0);
    for task in olds {
        let (grants, process) = task.await.unwrap();
        by_message += process.by_message;
        confirmed += process.confirmed;
        served[0].push(grants);
    }
    for task in news {
        served[1].push(task.await.unwrap());
    }
    eprintln!("old {:?}, new {:?}", served[0], served[1]);
    assert!(by_message > 0 && confirmed > 0, "{by_message}, {confirmed}");
    for side in &served {
        assert_served(side, equal_share(&served), SECOND);
    }
    nothing_is_left(
        &server,
        &managers.iter().collect::<Vec<_>>(),
        7 * SECOND,
        "the end",
    )
    .await;
}

/// An old process with waiters of its own keeps its lease until another process subscribes. A process that only polls
/// is served after that, or when the old process has no more waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poller_beside_busy_old_process_is_not_counted() {
    let server = RedisServer::start();
    let mut old = Old::connect(&server.url()).await;
    let lease = old.acquire().await;
    let waits = |locks: LockManager| {
        tokio::spawn(async move {
            let guard = locks.acquire("k").wait_forever().await.unwrap();
            guard.release().await.unwrap();
        })
    };
    let poller = waits(pooled(&server, None).await);
    let places = || server.cli(&["ZRANGE", "lock:{lock:k}%queue", "0", "-1"]);
    eventually("a place that polls", || places().contains('?')).await;
    for _ in 0..200 {
        sleep(MS).await;
        assert!(old.keeps(&lease).await, "it counts subscribers only");
    }
    assert!(!poller.is_finished());
    let listener = waits(prompt_manager(server.url(), LEASE).await);
    eventually("a place that listens", || places().contains('!')).await;
    assert!(!old.keeps(&lease).await);
    for waiter in [poller, listener] {
        timeout(2 * SECOND, waiter).await.unwrap().unwrap();
    }
}
