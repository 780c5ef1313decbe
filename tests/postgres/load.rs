//! Busy keys over time, what the dead rows cost, and what an ended process leaves. `BLOAT_SECONDS=n` sets the time of each
//! test with busy keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};
use tower_lock::{LockManager, PostgresBackend};

use super::LONG;
use super::herd::herd;
use super::support::postgres_server::PostgresServer;
use super::support::protected::Protected;

/// As on a server in production.
const SETTINGS: [&str; 4] = [
    "fsync=on",
    "shared_buffers=128MB",
    "max_wal_size=2GB",
    "autovacuum_naptime=10s",
];
const MANAGERS: usize = 2;
const CHANGING: usize = 10_000;
const SIZES: &str = "SELECT pg_table_size('tower_lock.lease') / 1024, pg_indexes_size('tower_lock.lease') / 1024,
    coalesce(n_dead_tup, 0), autovacuum_count FROM pg_stat_user_tables WHERE relid = 'tower_lock.lease'::regclass";

/// What runs beside the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    Autovacuum,
    Nothing,
    /// A transaction that keeps all dead rows.
    OldSnapshot,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_key_has_one_owner() {
    run(1, Beside::Autovacuum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_key_without_autovacuum_has_one_owner() {
    run(1, Beside::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_key_beside_old_snapshot_has_one_owner() {
    run(1, Beside::OldSnapshot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_keys_have_one_owner() {
    run(CHANGING, Beside::Autovacuum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_keys_without_autovacuum_have_one_owner() {
    run(CHANGING, Beside::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_keys_beside_old_snapshot_have_one_owner() {
    run(CHANGING, Beside::OldSnapshot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn herd_of_32_processes_shares_grants() {
    herd(32).await;
}

/// It takes 60 s.
#[tokio::test]
async fn rows_of_ended_process_are_swept() {
    let server = PostgresServer::start(&[]).await;
    let locks = manager(&server).await;
    let _guard = locks.acquire("held").await.unwrap();
    let abandon =
        "INSERT INTO tower_lock.lease SELECT 'k' || i, i, i, 'ended', 'x', to_timestamp(1)
        FROM generate_series(1, 900) i";
    server.run(abandon).await;
    let client = server.client().await;
    let start = Instant::now();
    loop {
        let rows = client.query_one("SELECT count(*) FROM tower_lock.lease", &[]);
        if rows.await.unwrap().get::<_, i64>(0) == 1 {
            break;
        }
        assert!(start.elapsed() < 2 * LONG, "no sweep");
        sleep(Duration::from_millis(100)).await;
    }
}

fn seconds() -> u64 {
    let seconds = std::env::var("BLOAT_SECONDS").ok();
    seconds.map_or(5, |it| it.parse().unwrap())
}

async fn manager(server: &PostgresServer) -> LockManager {
    let builder = PostgresBackend::builder(server.url()).relaxed();
    let backend = builder.response_timeout(LONG / 10).connect().await.unwrap();
    LockManager::builder(backend).build().unwrap()
}

async fn run(keys: usize, beside: Beside) {
    let mut settings = SETTINGS.to_vec();
    settings.extend((beside == Beside::Nothing).then_some("autovacuum=off"));
    let server = PostgresServer::start(&settings).await;
    let (mut managers, client) = (Vec::new(), server.client().await);
    for _ in 0..MANAGERS {
        managers.push(manager(&server).await);
    }
    let old = server.client().await;
    if beside == Beside::OldSnapshot {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tower_lock.lease";
        old.batch_execute(begin).await.unwrap();
    }
    let protected: Arc<Vec<_>> = Arc::new((0..keys).map(|_| Protected::default()).collect());
    let (grants, late) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let end = Instant::now() + Duration::from_secs(seconds());
    let mut tasks = JoinSet::new();
    // One task for each manager passes the hot key on. Many keep the server busy with others.
    for number in 0..MANAGERS * if keys == 1 { 1 } else { 32 } {
        let locks = managers[number % MANAGERS].clone();
        let (protected, grants) = (Arc::clone(&protected), Arc::clone(&grants));
        let late = Arc::clone(&late);
        tasks.spawn(async move {
            while Instant::now() < end {
                let n = fastrand::usize(..protected.len());
                // Where dead rows stay, a command can be late.
                let Ok(guard) = locks.acquire(format!("key:{n}")).wait(LONG).await else {
                    late.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                drop(protected[n].enter(&guard));
                let released = guard.release().await;
                late.fetch_add(u32::from(released.is_err()), Ordering::Relaxed);
                grants.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut tick = interval(Duration::from_secs(seconds().div_ceil(12)));
    tick.tick().await;
    println!("{keys} keys, {beside:?}: pairs/s, kB of the table, of its index, dead rows, vacuums");
    let mut last = Instant::now();
    while !tasks.is_empty() {
        tokio::select! {
            biased;
            ended = tasks.join_next() => ended.unwrap().unwrap(),
            at = tick.tick() => {
                let count = grants.swap(0, Ordering::Relaxed);
                let rate = f64::from(count) / (at - last).as_secs_f64();
                last = at;
                let row = client.query_one(SIZES, &[]).await.unwrap();
                let [table, index, dead, vacuums] = [0, 1, 2, 3].map(|at| row.get::<_, i64>(at));
                println!("{rate:8.0} {table:8} {index:8} {dead:8} {vacuums:4}");
                assert!(count > 0, "no grant");
            }
        }
    }
    let late = late.load(Ordering::Relaxed);
    println!("{late} late");
    assert!(late == 0 || beside == Beside::OldSnapshot, "{late} late");
}
