//! The pause in grants after a server restarted or lost its data.

use std::num::{NonZeroU16, NonZeroUsize};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::backend::{
    AcquireRequest, Backend as _, Downgraded, KeepRequest, LeaseId, Mode, Release, ReleasedOrKept,
    Renewal, Renewed,
};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use crate::backend::contract::passes_conformance;
use crate::support::cluster::Cluster;
use crate::support::engine::{FENCE, MS, Monitor, PATIENCE, eventually, manager_from};
use crate::support::errors::chain;
use crate::support::patience::wait_until;
use crate::support::redis_server::RedisServer;

/// The longest lease, which is also the length of the quarantine.
const PERIOD: Duration = Duration::from_secs(2);
const QUARANTINE: &str = "lock:{fencing-token}%quarantine";

/// Creates a builder with long timeouts for a busy machine.
fn builder(url: impl Into<String>) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE).quarantine(PERIOD)
}

fn managing(backend: RedisBackend) -> LockManager {
    let locks = LockManager::builder(backend).watchdog_timeout(PERIOD);
    locks.build().unwrap()
}

/// Returns a manager after the quarantine of the first start.
async fn prepared(server: &RedisServer) -> LockManager {
    let locks = manager_from(builder(server.url()), PERIOD).await;
    drop(locks.acquire("first").wait(PATIENCE).await.unwrap());
    eventually("idle", || locks.snapshot().is_idle()).await;
    locks
}

/// Checks that an acquire fails because of the quarantine.
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
async fn quarantine_after_empty_restart_blocks_grants() {
    let mut server = RedisServer::start();
    let (here, there) = (
        prepared(&server).await,
        manager_from(builder(server.url()), PERIOD).await,
    );
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
    // The quarantine does not start again.
    drop(here.acquire("new").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_data_loss_restarts_quarantine() {
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

/// Attempts acquires until one of them detects the loss and starts the quarantine.
async fn eventually_noticed(locks: &LockManager, server: &RedisServer) {
    let deadline = Instant::now() + PATIENCE;
    while server.cli(&["EXISTS", QUARANTINE]) == "0" {
        assert!(Instant::now() < deadline, "no acquire detects the loss");
        assert!(locks.acquire("k").no_wait().await.is_err(), "granted");
        sleep(10 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_from_older_snapshot_blocks_grants() {
    let mut server = RedisServer::start();
    let (here, there) = (
        prepared(&server).await,
        manager_from(builder(server.url()), PERIOD).await,
    );
    server.cli(&["SAVE"]);
    let guard = here.acquire("k").await.unwrap();
    let granted = Instant::now();
    server.kill();
    server.launch_again();
    assert_eq!(server.cli(&["EXISTS", FENCE, "lock:k"]), "1");
    let next = tokio::spawn(there.acquire("k").wait(PATIENCE).into_future());
    guard.lost().await;
    let lost = granted.elapsed();
    assert!(lost < PERIOD * 3 / 4, "the holder lost it after {lost:?}");
    is_in_quarantine(&manager_from(builder(server.url()), PERIOD).await, "other").await;
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
async fn disabled_quarantine_sends_and_rejects_nothing() {
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
async fn first_connect_starts_quarantine_and_warns() {
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
async fn backend_after_quarantine_passes_conformance() {
    let server = RedisServer::start();
    drop(prepared(&server).await);
    let one = builder(server.url()).connect().await.unwrap();
    let other = builder(server.url()).connect().await.unwrap();
    passes_conformance(&one, &other).await;
}

/// During a quarantine, leases can be renewed, kept, inspected and released: another process may
/// have acquired them before it set the option.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantine_rejects_only_grants() {
    let server = RedisServer::start();
    let backend = builder(server.url()).quarantine(PATIENCE).connect().await;
    let backend = backend.unwrap();
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(7), 1));
    server.cli(&["HSET", "lock:k", &lease.to_string(), "1"]);
    server.cli(&["PEXPIRE", "lock:k", "20000"]);
    let renewal = [Renewal::new(key.clone(), lease, PATIENCE)];
    let renewed = backend.renew(&renewal).await.remove(0).unwrap();
    assert_eq!(renewed, Renewed::Renewed);
    assert!(backend.inspect(&key).await.unwrap().is_some());
    let passed = backend
        .release_or_keep(&[KeepRequest::new(key.clone(), lease, PATIENCE)])
        .await
        .remove(0)
        .unwrap();
    assert!(matches!(passed, ReleasedOrKept::Kept { .. }), "{passed:?}");
    assert!(
        backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease, PATIENCE))
            .await
            .is_err()
    );
    for (mode, limit) in [(Mode::Shared, None), (Mode::Permit, NonZeroU16::new(2))] {
        let request = AcquireRequest::new(LockKey::new("other"), lease, PATIENCE).with_mode(mode);
        let outcome = backend.try_acquire(&request.with_limit(limit)).await;
        assert!(outcome.is_err(), "{mode:?}: {outcome:?}");
    }
    let downgraded = backend.downgrade(&renewal[0]).await.unwrap();
    assert!(matches!(downgraded, Downgraded::Shared { .. }));
    assert!(
        backend
            .release(&[Release::new(key, lease)])
            .await
            .remove(0)
            .is_ok()
    );
}

#[tokio::test]
async fn quarantine_reports_missing_permission() {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all -pexpire";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    for _ in 0..2 {
        let refused = builder(server.url_of("some", "secret")).connect().await;
        let error = refused.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        assert!(pttl(&server, QUARANTINE) > 0, "no quarantine");
    }
}

#[tokio::test]
async fn quarantine_out_of_bounds_is_rejected() {
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
async fn quarantine_works_with_min_replicas() {
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

/// Returns keys in several slots of a node.
fn keys_of(cluster: &Cluster, node: usize) -> Vec<String> {
    let keys = (0..60).map(|n| format!("key {n}"));
    let keys =
        keys.filter(|key| cluster.node_of(&format!("lock:{}", LockKey::new(key).as_str())) == node);
    keys.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_node_quarantine_covers_all_slots() {
    // Long enough that the first slot is still in quarantine when the last one starts.
    const PERIOD: Duration = Duration::from_secs(6);
    let mut cluster = Cluster::start_with(&["--cluster-node-timeout", "60000"]);
    let (mine, others) = (keys_of(&cluster, 0), keys_of(&cluster, 1));
    assert!(mine.len() >= 4 && others.len() >= 4);
    let start = Instant::now();
    let backend = builder(cluster.url()).quarantine(PERIOD).connect().await;
    let backend = backend.unwrap();
    // All nodes have started their quarantine by now.
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
    // Unused slots leave the quarantine as well. The uptime of a node is in full seconds.
    sleep_until(begun + PERIOD + Duration::from_secs(1)).await;
    let unused = others.iter().chain(&mine[1..3]);
    for key in unused {
        drop(locks.acquire(key.as_str()).no_wait().await.unwrap());
    }

    let held = locks.acquire(mine[0].as_str()).await.unwrap();
    let lost = Instant::now();
    cluster.kill(0);
    cluster.restart(0).await;
    // One acquire detects the loss for all slots.
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
    // A backend that connects after the quarantine reports no warnings.
    let late = builder(cluster.url()).connect().await.unwrap();
    assert_eq!(late.warnings(), <&[String]>::default());
}
