//! Locks on a real server, compared with the same client without locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use tokio::time::Instant;
use tower_lock::{LockManager, RedisBackend};

use crate::redis_server::RedisServer;
use crate::scripts::{ACQUIRE, RELEASE};
use crate::table::{Series, Table, ratio};

const PAIRS: usize = 40_000;
const ROUNDS: usize = 7;

struct Bare {
    acquire: redis::Script,
    release: redis::Script,
}

impl Bare {
    fn new() -> Self {
        Self {
            acquire: redis::Script::new(ACQUIRE),
            release: redis::Script::new(RELEASE),
        }
    }

    async fn lock(&self, connection: &mut impl ConnectionLike, key: &str) {
        let owner = "7ee9e9e5-56b8-4b3c-9d0b-0ffcb1d1d1a1:1";
        let mut call = self.acquire.key(key);
        let left: Option<i64> = call
            .arg(owner)
            .arg(30_000)
            .invoke_async(connection)
            .await
            .expect("acquire");
        assert_eq!(left, None);
    }

    async fn unlock(&self, connection: &mut impl ConnectionLike, key: &str) {
        let owner = "7ee9e9e5-56b8-4b3c-9d0b-0ffcb1d1d1a1:1";
        let mut call = self.release.key(key);
        let freed: i64 = call
            .key(format!("redisson_lock__channel:{{{key}}}"))
            .arg(owner)
            .invoke_async(connection)
            .await
            .expect("release");
        assert_eq!(freed, 1);
    }
}

/// A new key per pair, so that no key is contended or reused before its release.
fn key(task: usize, n: usize) -> String {
    format!("lock:order:{task}:{n}")
}

/// Runs `one(task, n)` until `PAIRS` are done, with `tasks` concurrent tasks. Returns pairs per second.
async fn pairs_per_second<F, W>(tasks: usize, pairs: usize, one: F) -> f64
where
    F: Fn(usize, usize) -> W + Clone + Send + 'static,
    W: Future<Output = ()> + Send,
{
    let done = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let (one, done) = (one.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                loop {
                    let n = done.fetch_add(1, Ordering::Relaxed);
                    if n >= pairs {
                        return;
                    }
                    one(task, n).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("worker");
    }
    pairs as f64 / start.elapsed().as_secs_f64()
}

async fn bare(connection: &MultiplexedConnection, tasks: usize, pairs: usize) -> f64 {
    let connection = connection.clone();
    let bare = Arc::new(Bare::new());
    pairs_per_second(tasks, pairs, move |task, n| {
        let mut connection = connection.clone();
        let bare = Arc::clone(&bare);
        async move {
            let key = key(task, n);
            bare.lock(&mut connection, &key).await;
            bare.unlock(&mut connection, &key).await;
        }
    })
    .await
}

async fn checkout(pool: &deadpool_redis::Pool, tasks: usize, pairs: usize) -> f64 {
    let pool = pool.clone();
    let bare = Arc::new(Bare::new());
    pairs_per_second(tasks, pairs, move |task, n| {
        let pool = pool.clone();
        let bare = Arc::clone(&bare);
        async move {
            let key = key(task, n);
            bare.lock(&mut pool.get().await.expect("checkout"), &key)
                .await;
            bare.unlock(&mut pool.get().await.expect("checkout"), &key)
                .await;
        }
    })
    .await
}

/// Returns pairs per second, up to the server's confirmation of the last release.
async fn ours(locks: &LockManager, tasks: usize, pairs: usize) -> f64 {
    let start = Instant::now();
    let owned = locks.clone();
    pairs_per_second(tasks, pairs, move |task, n| {
        let locks = owned.clone();
        async move {
            drop(locks.acquire(key(task, n)).await.expect("acquire"));
        }
    })
    .await;
    while !locks.snapshot().is_idle() {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    pairs as f64 / start.elapsed().as_secs_f64()
}

pub(crate) async fn distinct_keys(server: &RedisServer, table: &mut Table) {
    let client = redis::Client::open(server.url()).expect("client");
    let connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("connection");
    let pool = deadpool_redis::Config::from_url(server.url())
        .builder()
        .expect("pool")
        .max_size(64)
        .runtime(deadpool_redis::Runtime::Tokio1)
        .build()
        .expect("pool");
    let locks = manager(server).await;
    for tasks in [1, 64, 256] {
        let pairs = if tasks == 1 { PAIRS / 8 } else { PAIRS };
        let (mut bare_series, mut checkout_series, mut our_series) =
            (Series::new(), Series::new(), Series::new());
        for _ in 0..ROUNDS {
            bare_series.add(bare(&connection, tasks, pairs).await);
            our_series.add(ours(&locks, tasks, pairs).await);
            checkout_series.add(checkout(&pool, tasks, pairs / 4).await);
        }
        table.row(
            format!("distinct keys, {tasks} in flight: the pair of scripts alone, no token"),
            bare_series.per_second(),
            String::new(),
        );
        table.row(
            format!("distinct keys, {tasks} in flight: the pair with a checkout per command"),
            checkout_series.per_second(),
            String::new(),
        );
        table.row(
            format!("distinct keys, {tasks} in flight: tower-lock"),
            our_series.per_second(),
            format!(
                "{} × scripts alone, {} × checkout",
                ratio(&our_series, &bare_series),
                ratio(&our_series, &checkout_series)
            ),
        );
    }
}

async fn manager(server: &RedisServer) -> LockManager {
    let backend = RedisBackend::builder(server.url())
        .connect()
        .await
        .expect("backend");
    LockManager::builder(backend).build().expect("manager")
}

/// Measures the time of one acquire with no other command in flight, beside one `EVALSHA`.
pub(crate) async fn latency(server: &RedisServer, table: &mut Table) {
    const SAMPLES: usize = 4_000;
    let client = redis::Client::open(server.url()).expect("client");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("connection");
    let bare = Bare::new();
    let locks = manager(server).await;
    let (mut bare_p50, mut dropped_p50, mut awaited_p50) =
        (Series::new(), Series::new(), Series::new());
    let mut bare_spread = Series::new();
    for round in 0..ROUNDS {
        let mut times = Vec::new();
        for n in 0..SAMPLES {
            let key = key(round, n);
            let start = Instant::now();
            bare.lock(&mut connection, &key).await;
            times.push(start.elapsed());
            bare.unlock(&mut connection, &key).await;
        }
        bare_p50.add(median_micros(&mut times));
        let longest = times[times.len() - 1].as_secs_f64() * 1e6;
        bare_spread.add(longest / median_micros(&mut times));
        times.clear();
        for n in 0..SAMPLES {
            let key = key(round, n);
            let start = Instant::now();
            let guard = locks.acquire(&key).await.expect("acquire");
            times.push(start.elapsed());
            guard.release().await.expect("release");
        }
        awaited_p50.add(median_micros(&mut times));
        times.clear();
        for n in 0..SAMPLES {
            let key = key(round, n);
            let start = Instant::now();
            let guard = locks.acquire(&key).await.expect("acquire");
            times.push(start.elapsed());
            drop(guard);
        }
        dropped_p50.add(median_micros(&mut times));
    }
    table.row(
        "p50 of one `EVALSHA` alone, 1 in flight".to_owned(),
        bare_p50.micros(),
        format!("longest {} × the median", bare_spread.plain()),
    );
    table.row(
        "p50 of one acquire, the release is awaited".to_owned(),
        awaited_p50.micros(),
        format!("{} × `EVALSHA` alone", ratio(&awaited_p50, &bare_p50)),
    );
    table.row(
        "p50 of one acquire, the last release is in flight".to_owned(),
        dropped_p50.micros(),
        format!("{} × `EVALSHA` alone", ratio(&dropped_p50, &bare_p50)),
    );
}

fn median_micros(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Measures 64 tasks that acquire one key repeatedly.
async fn hot<F, G>(name: &str, take: F, table: &mut Table)
where
    F: Fn() -> G + Clone + Send + 'static,
    G: Future + Send,
    G::Output: Send,
{
    const WAITERS: usize = 64;
    const GRANTS: usize = 400_000;
    let (mut grants, mut spread, mut over) = (Series::new(), Series::new(), Series::new());
    for _ in 0..ROUNDS {
        let taken = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let workers: Vec<_> = (0..WAITERS)
            .map(|_| {
                let (take, taken) = (take.clone(), Arc::clone(&taken));
                tokio::spawn(async move {
                    let mut waits = Vec::with_capacity(2 * GRANTS / WAITERS);
                    while taken.fetch_add(1, Ordering::Relaxed) < GRANTS {
                        let asked = Instant::now();
                        let guard = take().await;
                        waits.push(asked.elapsed());
                        drop(guard);
                    }
                    waits
                })
            })
            .collect();
        let mut waits = Vec::new();
        for worker in workers {
            waits.append(&mut worker.await.expect("worker"));
        }
        grants.add(waits.len() as f64 / start.elapsed().as_secs_f64());
        waits.sort_unstable();
        let median = waits[waits.len() / 2].as_secs_f64();
        let wait_at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize].as_secs_f64();
        spread.add(wait_at(1.0) / median);
        over.add(wait_at(0.999) / median);
    }
    table.row(
        format!("hot, 64 waiters: {name}"),
        grants.per_second(),
        format!(
            "longest wait {} × the median, p99.9 {} ×",
            spread.plain(),
            over.plain()
        ),
    );
}

async fn hot_key(locks: LockManager, name: &str, table: &mut Table) {
    let take = move || {
        let acquire = locks.acquire("hot");
        async move { acquire.await.expect("acquire") }
    };
    hot(name, take, table).await;
}

pub(crate) async fn hot_keys(server: &RedisServer, table: &mut Table) {
    let mutex = Arc::new(tokio::sync::Mutex::new(()));
    let lock_mutex = move || Arc::clone(&mutex).lock_owned();
    hot(
        "`tokio::sync::Mutex`, the limit of this machine",
        lock_mutex,
        table,
    )
    .await;
    hot_key(LockManager::in_memory(), "tower-lock on memory", table).await;
    hot_key(manager(server).await, "tower-lock on Redis", table).await;
}
