//! The documented user can do all that locks need.

use std::num::NonZeroUsize;
use std::time::Duration;

use tower_lock::backend::conformance;
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{ConnectError, LockManager};

use super::{
    IN_CLUSTER, LOCKER, WITH_FORCE, WITH_QUARANTINE, WITH_REPLICAS, WITH_SHARED, WITH_VOTES, allow,
    at, rules, with_everything,
};
use crate::backend::contract::passes_conformance;
use crate::support::cluster::Cluster;
use crate::support::engine::{PATIENCE, eventually};
use crate::support::redis_server::RedisServer;

async fn keeps_the_contract(builder: impl Fn() -> RedisBackendBuilder) {
    let (one, other) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    passes_conformance(&one, &other).await;
    conformance::all_of_node(&one, &other).await;
}

#[test]
fn guide_and_rustdoc_list_same_permissions() {
    let words = |text: &str| text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        include_str!("../../../src/guide/redis.rs").replace("//!", ""),
        include_str!("../../../src/backend/redis/backend.rs").replace("///", ""),
    ] {
        let quoted = [
            IN_CLUSTER,
            WITH_REPLICAS,
            WITH_QUARANTINE,
            WITH_VOTES,
            WITH_FORCE,
            WITH_SHARED,
        ]
        .map(|rules| format!("`{rules}`"));
        for rules in [format!("{LOCKER} ```")].iter().chain(&quoted) {
            assert!(words(&text).contains(rules), "{rules}");
        }
    }
}

#[tokio::test]
async fn documented_user_passes_conformance() {
    let server = RedisServer::start();
    allow(&server, &format!("{LOCKER} {WITH_QUARANTINE}"));
    // The server is new, so a quarantine begins. It ends with the first grant.
    let quarantined = || at(&server.url()).quarantine(Duration::from_millis(1));
    let locks = LockManager::builder(quarantined().connect().await.unwrap());
    let locks = locks.build().unwrap();
    drop(locks.acquire("a").wait(PATIENCE).await.unwrap());
    allow(&server, &format!("{LOCKER} {WITH_FORCE} {WITH_SHARED}"));
    let connect = || at(&server.url()).connect();
    passes_conformance(&connect().await.unwrap(), &connect().await.unwrap()).await;
    allow(
        &server,
        &format!("{LOCKER} {WITH_VOTES} {WITH_FORCE} {WITH_SHARED}"),
    );
    keeps_the_contract(|| at(&server.url())).await;
    // Each grant checks for data loss and finds none.
    let rules = format!("{LOCKER} {WITH_QUARANTINE} {WITH_VOTES} {WITH_FORCE} {WITH_SHARED}");
    allow(&server, &rules);
    keeps_the_contract(quarantined).await;
}

#[tokio::test]
async fn quarantine_without_info_permission_is_rejected() {
    let server = RedisServer::start();
    allow(&server, &format!("{LOCKER} +set"));
    // The first call creates the counter and needs no uptime, and the second one does.
    let connect = || at(&server.url()).quarantine(PATIENCE).connect();
    for _ in 0..2 {
        let refused = connect().await.unwrap_err();
        assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    }
    allow(&server, &format!("{LOCKER} {WITH_QUARANTINE}"));
    connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_user_passes_cluster_conformance() {
    let cluster = Cluster::start();
    for node in 0..6 {
        allow(
            cluster.node(node),
            &format!("{} {WITH_FORCE} {WITH_SHARED}", rules()),
        );
    }
    let url = cluster.url();
    keeps_the_contract(|| at(&url)).await;
    keeps_the_contract(|| with_everything(&url)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_acquires_in_moving_slot() {
    let cluster = Cluster::start();
    for node in 0..6 {
        let rules = format!("{LOCKER} {IN_CLUSTER} {WITH_QUARANTINE}");
        allow(cluster.node(node), &rules);
    }
    let backend = at(&cluster.url()).quarantine(Duration::from_millis(1));
    let locks = LockManager::builder(backend.connect().await.unwrap());
    let locks = locks.build().unwrap();
    let (slot, from) = (cluster.slot("{user}"), cluster.node_of("{user}"));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    cluster.begin_migration(slot, from, to.unwrap());
    let guard = locks.acquire("{user}").wait(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
}

/// The pool sends `UNWATCH` before it reuses a connection, and opens a new one if that fails.
#[tokio::test]
async fn replica_connections_need_unwatch_for_reuse() {
    let server = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let port = server.port().to_string();
    let _replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    eventually("a replica in sync", || {
        let replication = server.cli(&["INFO", "replication"]);
        replication.contains("state=online")
    })
    .await;
    let opened = || {
        let stats = server.cli(&["INFO", "stats"]);
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        count.unwrap().parse::<usize>().unwrap()
    };
    for (without, again) in [("", true), ("-unwatch", false)] {
        allow(&server, &format!("{LOCKER} {WITH_REPLICAS} {without}"));
        let builder = at(&server.url()).min_replicas(NonZeroUsize::MIN, PATIENCE);
        let backend = builder.connect().await.unwrap();
        let locks = LockManager::builder(backend).build().unwrap();
        let before = opened();
        for number in 0..10 {
            drop(locks.acquire(format!("{without}:{number}")).await.unwrap());
        }
        let opened = opened() - before;
        assert_eq!(opened < 5, again, "{opened} for {without:?}");
    }
}

/// Without these permissions, the backend omits the owner and the memory policy warning.
#[tokio::test]
async fn extra_permissions_enable_owner_and_warnings() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    for (more, tells) in [("", false), ("+hgetall +info", true)] {
        allow(&server, &format!("{LOCKER} {more}"));
        let backend = at(&server.url()).connect().await.unwrap();
        assert_eq!(backend.warnings().len(), usize::from(tells));
        let [here, there] = [backend.clone(), backend]
            .map(|backend| LockManager::builder(backend).build().unwrap());
        let guard = here.acquire("a").await.unwrap();
        let info = there.inspect("a").await.unwrap().unwrap();
        // The part of the owner that identifies its process.
        let owner = guard.owner().to_string();
        let owner = owner.split(':').next().unwrap();
        assert_eq!(format!("{info:?}").contains(owner), tells, "{info:?}");
    }
}
