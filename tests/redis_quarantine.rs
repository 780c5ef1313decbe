//! No grants for a while after a server restarted or lost its data.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::num::NonZeroUsize;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::backend::{
    AcquireRequest, Backend as _, KeepRequest, LeaseId, Release, ReleasedOrKept, Renewal, Renewed,
    conformance,
};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use support::cluster::Cluster;
use support::engine::{FENCE, MS, Monitor, PATIENCE, eventually};
use support::patience::wait_until;
use support::redis_server::RedisServer;

/// The longest lease, and so the quarantine.
const PERIOD: Duration = Duration::from_secs(2);
const QUARANTINE: &str = "lock:{fencing-token}%quarantine";

/// Patient with a busy machine.
fn builder(url: impl Into<String>) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE).quarantine(PERIOD)
}

async fn manager(url: impl Into<String>) -> LockManager {
    managing(builder(url).connect().await.unwrap())
}

fn managing(backend: RedisBackend) -> LockManager {
    let locks = LockManager::builder(backend).watchdog_timeout(PERIOD);
    locks.build().unwrap()
}

/// The first start is over.
async fn prepared(server: &RedisServer) -> LockManager {
    let locks = manager(server.url()).await;
    drop(locks.acquire("first").wait(PATIENCE).await.unwrap());
    eventually("idle", || locks.snapshot().is_idle()).await;
    locks
}

/// Everything an error says, down to its last cause.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// No lock is to be had at the moment, because of a loss of data.
async fn is_in_quarantine(locks: &LockManager, key: &str) {
    let error = locks.acquire(key).no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let said = "server restarted or lost its data; no grants for another";
    assert!(chain(&error).contains(said), "{}", chain(&error));
}

fn pttl(server: &RedisServer, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().unwrap()
}

// ---- one server ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_empty_restart_nobody_is_granted_before_the_longest_lease_has_passed() {
    let mut server = RedisServer::start();
    let (here, there) = (prepared(&server).await, manager(server.url()).await);
    let guard = here.acquire("k").await.unwrap();
    let lost = Instant::now();
    server.restart_empty();
    guard.lost().await;
    let waits = ["k", "other", "third"].map(|key| there.acquire(key).wait(PATIENCE).into_future());
    let waits = tokio::spawn(join_all(waits.into_iter().map(|wait| async move {
        let guard = wait.await.unwrap();
        (Instant::now(), guard)
    })));
    eventually("noticed", || server.cli(&["EXISTS", QUARANTINE]) == "1").await;
    is_in_quarantine(&here, "new").await;
    let own = here.acquire("k").wait(500 * MS).await.unwrap_err();
    assert_eq!(own.kind(), ErrorKind::Unavailable);
    for (granted, next) in waits.await.unwrap() {
        assert!(
            granted - lost >= PERIOD,
            "granted after {:?}",
            granted - lost
        );
        assert!(next.fencing_token() > guard.fencing_token());
    }
    assert_eq!(server.cli(&["EXISTS", QUARANTINE]), "0");
    // It is over for good.
    drop(here.acquire("new").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_loss_begins_another_quarantine() {
    let mut server = RedisServer::start();
    let locks = prepared(&server).await;
    server.restart_empty();
    eventually_noticed(&locks, &server).await;
    sleep(PERIOD / 2).await;
    server.cli(&["FLUSHALL"]);
    let again = Instant::now();
    is_in_quarantine(&locks, "k").await;
    let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
    assert!(again.elapsed() >= PERIOD, "{:?}", again.elapsed());
    guard.release().await.unwrap();
}

/// Somebody tries, and so somebody notices.
async fn eventually_noticed(locks: &LockManager, server: &RedisServer) {
    let deadline = Instant::now() + PATIENCE;
    while server.cli(&["EXISTS", QUARANTINE]) == "0" {
        assert!(Instant::now() < deadline, "nobody notices");
        assert!(locks.acquire("k").no_wait().await.is_err(), "granted");
        sleep(10 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_from_older_snapshot_blocks_grants() {
    let mut server = RedisServer::start();
    let (here, there) = (prepared(&server).await, manager(server.url()).await);
    server.cli(&["SAVE"]);
    let guard = here.acquire("k").await.unwrap();
    let granted = Instant::now();
    server.kill();
    server.launch_again();
    assert_eq!(server.cli(&["EXISTS", FENCE, "lock:k"]), "1");
    let next = tokio::spawn(there.acquire("k").wait(PATIENCE).into_future());
    guard.lost().await;
    let lost = granted.elapsed();
    assert!(lost < PERIOD * 3 / 4, "the holder learns of it at {lost:?}");
    is_in_quarantine(&manager(server.url()).await, "other").await;
    let next = next.await.unwrap().unwrap();
    assert!(granted.elapsed() >= PERIOD, "{:?}", granted.elapsed());
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(server.cli(&["EXISTS", QUARANTINE]), "0");
    drop(there.acquire("other").no_wait().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_with_all_data_keeps_holders_only() {
    let mut server = RedisServer::start();
    let locks = prepared(&server).await;
    let guard = locks.acquire("k").lease(PATIENCE).await.unwrap();
    server.restart_with_data();
    let start = Instant::now();
    let late = builder(server.url()).connect().await.unwrap();
    assert_eq!(late.warnings().len(), 1, "{:?}", late.warnings());
    is_in_quarantine(&managing(late), "other").await;
    let other = locks.acquire("other").wait(PATIENCE).await.unwrap();
    // The start of the process precedes the first reply by some milliseconds.
    assert!(
        start.elapsed() >= PERIOD - 500 * MS,
        "{:?}",
        start.elapsed()
    );
    assert!(other.fencing_token() > guard.fencing_token());
    assert!(guard.is_held());
    assert_eq!(server.cli(&["EXISTS", QUARANTINE]), "0");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_option_nothing_is_asked_for_and_nothing_refused() {
    let mut server = RedisServer::start();
    let backend = RedisBackend::builder(server.url()).connect().await.unwrap();
    assert_eq!(backend.warnings(), <&[String]>::default());
    let locks = managing(backend);
    let first = locks.acquire("k").await.unwrap();
    server.restart_empty();
    first.lost().await;
    let start = Instant::now();
    let monitor = Monitor::start(&server);
    let next = locks.acquire("k").wait(PATIENCE).await.unwrap();
    assert!(start.elapsed() < PERIOD, "{:?}", start.elapsed());
    assert!(next.fencing_token() > first.fencing_token());
    let sent = monitor.lines_until_now(&server).await;
    assert!(sent.iter().any(|line| line.contains("lock:k")));
    assert!(!sent.iter().any(|line| line.contains(QUARANTINE)));
    next.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), FENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_connection_begins_it_warns_of_it_and_works() {
    let server = RedisServer::start();
    let start = Instant::now();
    let first = builder(server.url()).connect().await.unwrap();
    let second = builder(server.url()).connect().await.unwrap();
    for backend in [&first, &second] {
        let warnings = backend.warnings();
        let said = "is new, restarted or lost its data; no grants for another";
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(said), "{warnings:?}");
    }
    let (here, there) = (managing(first), managing(second));
    is_in_quarantine(&here, "k").await;
    drop(there.acquire("k").wait(PATIENCE).await.unwrap());
    let over = start.elapsed();
    assert!(over >= PERIOD, "granted after {over:?}");
    let third = builder(server.url()).connect().await.unwrap();
    assert_eq!(third.warnings(), <&[String]>::default());
    drop(managing(third).acquire("third").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_quarantine_the_contract_is_kept() {
    let server = RedisServer::start();
    drop(prepared(&server).await);
    let one = builder(server.url()).connect().await.unwrap();
    let other = builder(server.url()).connect().await.unwrap();
    conformance::all(&one, &other).await;
}

/// What is not granted may still be renewed, kept, looked at and given back: another process may
/// have granted it before it set the option.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_grants_are_refused() {
    let server = RedisServer::start();
    let backend = builder(server.url()).quarantine(PATIENCE).connect().await;
    let backend = backend.unwrap();
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(7), 1));
    server.cli(&["HSET", "lock:k", &lease.to_string(), "1"]);
    server.cli(&["PEXPIRE", "lock:k", "20000"]);
    let renewal = Renewal::new(key.clone(), lease, PATIENCE);
    let renewed = backend.renew(&[renewal]).await.remove(0).unwrap();
    assert_eq!(renewed, Renewed::Renewed);
    assert!(backend.inspect(&key).await.unwrap().is_some());
    let passed = backend
        .release_or_keep(&KeepRequest::new(key.clone(), lease, PATIENCE))
        .await
        .unwrap();
    assert!(matches!(passed, ReleasedOrKept::Kept { .. }), "{passed:?}");
    assert!(
        backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease, PATIENCE))
            .await
            .is_err()
    );
    assert!(
        backend
            .release(&[Release::new(key, lease)])
            .await
            .remove(0)
            .is_ok()
    );
}

#[tokio::test]
async fn a_quarantine_hides_no_permission_that_is_missing() {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all -pexpire";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    for _ in 0..2 {
        let refused = builder(server.url_of("some", "secret")).connect().await;
        let error = refused.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        assert!(pttl(&server, QUARANTINE) > 0, "it was one");
    }
}

#[tokio::test]
async fn a_time_out_of_bounds_is_refused() {
    let server = RedisServer::start();
    for time in [Duration::ZERO, Duration::from_secs(367 * 24 * 3_600)] {
        let refused = RedisBackend::builder(server.url())
            .quarantine(time)
            .connect()
            .await;
        match refused.unwrap_err() {
            ConnectError::Config(error) => assert_eq!(error.field(), "quarantine"),
            error => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_goes_together_with_replicas() {
    let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    wait_until(
        "a replica in sync",
        || primary.log(),
        || {
            primary
                .cli(&["INFO", "replication"])
                .contains("state=online")
        },
    );
    let builder = builder(primary.url()).min_replicas(NonZeroUsize::MIN, PATIENCE);
    let start = Instant::now();
    let backend = builder.connect().await.unwrap();
    assert_eq!(backend.warnings().len(), 1, "{:?}", backend.warnings());
    let locks = managing(backend);
    is_in_quarantine(&locks, "k").await;
    let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
    assert!(start.elapsed() >= PERIOD);
    assert_eq!(replica.cli(&["EXISTS", "lock:k"]), "1");
    guard.release().await.unwrap();
}

// ---- a cluster ----

/// A key in every so many slots of a node.
fn keys_of(cluster: &Cluster, node: usize) -> Vec<String> {
    let keys = (0..60).map(|n| format!("key {n}"));
    let keys =
        keys.filter(|key| cluster.node_of(&format!("lock:{}", LockKey::new(key).as_str())) == node);
    keys.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_a_node_that_lost_its_data_has_one_quarantine_for_all_its_slots() {
    // So long that it is seen in the first slot when it has begun in the last.
    const PERIOD: Duration = Duration::from_secs(6);
    let mut cluster = Cluster::start_with(&["--cluster-node-timeout", "60000"]);
    let (mine, others) = (keys_of(&cluster, 0), keys_of(&cluster, 1));
    assert!(mine.len() >= 4 && others.len() >= 4);
    let start = Instant::now();
    let backend = builder(cluster.url()).quarantine(PERIOD).connect().await;
    let backend = backend.unwrap();
    // Begun everywhere by now.
    let begun = Instant::now();
    assert_eq!(backend.warnings().len(), 3, "{:?}", backend.warnings());
    let counters = |node: usize| -> usize {
        let keys = cluster.cli(node, &["KEYS", "*%"]);
        keys.lines().count()
    };
    assert_eq!((0..3).map(counters).sum::<usize>(), 16_384);
    let locks = managing(backend);
    let granted = locks.acquire(mine[0].as_str()).wait(PATIENCE).await;
    granted.unwrap().release().await.unwrap();
    assert!(start.elapsed() >= PERIOD);
    // Slots that nobody ever used are not in quarantine any more.
    // The uptime of a node is in full seconds.
    sleep_until(begun + PERIOD + Duration::from_secs(1)).await;
    let unused = others.iter().chain(&mine[1..3]);
    for key in unused {
        drop(locks.acquire(key.as_str()).no_wait().await.unwrap());
    }

    let held = locks.acquire(mine[0].as_str()).await.unwrap();
    let lost = Instant::now();
    cluster.kill(0);
    cluster.restart(0).await;
    // One acquire notices for all.
    let next = locks.acquire(mine[1].as_str()).wait(PATIENCE);
    let next = tokio::spawn(next.into_future());
    eventually("all of its slots are in quarantine", || {
        let keys = cluster.cli(0, &["KEYS", "*%quarantine"]);
        keys.lines().count() > 5_000
    })
    .await;
    held.lost().await;
    drop(locks.acquire(others[0].as_str()).no_wait().await.unwrap());
    let next = next.await.unwrap().unwrap();
    assert!(lost.elapsed() >= PERIOD, "{:?}", lost.elapsed());
    assert!(next.fencing_token() > held.fencing_token());
    eventually("over in all of them", || {
        cluster.cli(0, &["KEYS", "*%quarantine"]).is_empty()
    })
    .await;
    for key in &mine[2..] {
        drop(locks.acquire(key.as_str()).no_wait().await.unwrap());
    }
    // Who connects now finds everything in order.
    let late = builder(cluster.url()).connect().await.unwrap();
    assert_eq!(late.warnings(), <&[String]>::default());
}
