//! One process of a rolling upgrade. Its tasks acquire one key, in one mode, until SIGTERM, beside processes of another
//! version of the crate. Prints its grants and its longest wait, and `VIOLATION` if a holder is excluded by another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::Script;
use redis::aio::MultiplexedConnection;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use tower_lock::{LockGuard, LockManager, RedisBackend};

const TASKS: usize = 4;
const PERMITS: u32 = 3;
const LEASE: Duration = Duration::from_secs(2);

/// Adds a holder, and returns the others. One that entered 150 ms ago is the holder of a killed process: its lease lasts
/// longer.
const ENTER: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 150)
    local others = redis.call('ZRANGE', KEYS[1], 0, -1)
    redis.call('ZADD', KEYS[1], now, ARGV[1])
    return others";

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Exclusive,
    /// Each fourth holder writes.
    Shared,
    Permits,
}

struct Worker {
    locks: LockManager,
    mode: Mode,
    key: String,
    referee: MultiplexedConnection,
    ends: AtomicBool,
    grants: AtomicU64,
    longest: AtomicU64,
}

impl Worker {
    async fn acquire(&self, writes: bool) -> LockGuard {
        let acquire = self.locks.acquire(self.key.as_str());
        let acquire = match self.mode {
            Mode::Permits => acquire.permits(PERMITS),
            Mode::Shared if !writes => acquire.shared(),
            _ => acquire,
        };
        acquire.wait(Duration::from_secs(60)).await.expect("a lock")
    }

    async fn run(self: Arc<Self>, task: usize) {
        let mut referee = self.referee.clone();
        let holders = format!("holders:{}", self.key);
        for number in 0.. {
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let writes =
                self.mode == Mode::Exclusive || self.mode == Mode::Shared && number % 4 == 0;
            let begun = Instant::now();
            let guard = self.acquire(writes).await;
            let waited = u64::try_from(begun.elapsed().as_millis()).expect("a short wait");
            self.longest.fetch_max(waited, Ordering::Relaxed);
            self.grants.fetch_add(1, Ordering::Relaxed);
            let kind = if writes { "writer" } else { "other" };
            let name = format!("{kind}:{}:{task}:{number}", std::process::id());
            let script = Script::new(ENTER);
            let mut enter = script.key(&holders);
            let entered = enter.arg(&name).invoke_async(&mut referee).await;
            let others: Vec<String> = entered.expect("the referee");
            let may_enter = match self.mode {
                Mode::Permits => others.len() < PERMITS as usize,
                _ if writes => others.is_empty(),
                _ => others.iter().all(|it| it.starts_with("other")),
            };
            if !may_enter {
                println!("VIOLATION: {name} entered beside {others:?}");
            }
            sleep(Duration::from_millis(fastrand::u64(0..10))).await;
            let leave: Result<(), _> = redis::cmd("ZREM")
                .arg(&holders)
                .arg(&name)
                .query_async(&mut referee)
                .await;
            leave.expect("the referee");
            match number % 2 {
                0 => drop(guard),
                _ => guard.release().await.expect("a release"),
            }
            sleep(Duration::from_millis(fastrand::u64(0..5))).await;
        }
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, mode] = arguments.as_slice() else {
        panic!("usage: versions URL exclusive|shared|permits");
    };
    let mut ended = signal(SignalKind::terminate()).expect("a signal");
    let client = redis::Client::open(url.as_str()).expect("a URL");
    let backend = RedisBackend::builder(url.as_str())
        .connect()
        .await
        .expect("a server");
    let locks = LockManager::builder(backend)
        .watchdog_timeout(LEASE)
        .build();
    let worker = Arc::new(Worker {
        locks: locks.expect("valid settings"),
        mode: match mode.as_str() {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            "permits" => Mode::Permits,
            other => panic!("no mode: {other}"),
        },
        key: format!("versions:{mode}"),
        referee: client
            .get_multiplexed_async_connection()
            .await
            .expect("a server"),
        ends: AtomicBool::default(),
        grants: AtomicU64::default(),
        longest: AtomicU64::default(),
    });
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(Arc::clone(&worker).run(task)))
        .collect();
    ended.recv().await;
    worker.ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    worker.locks.shutdown(LEASE).await;
    let [grants, longest] = [&worker.grants, &worker.longest].map(|it| it.load(Ordering::Relaxed));
    println!("{grants} grants, longest wait {longest} ms");
}
