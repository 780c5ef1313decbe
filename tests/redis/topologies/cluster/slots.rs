//! Keys, channels and counters in their slots, and the contract.

use std::future::IntoFuture as _;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend as _;
use tower_lock::backend::redis::Publish;
use tower_lock::{ConnectError, ErrorKind, LockKey, LockKeys, LockManager, RedisBackend};

use super::support::{LONG, SHORT, has_subscriptions, key_of_each, nothing_is_left, waiter};
use crate::backend::contract::passes_conformance;
use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, SECOND, eventually, manager, managers, within};
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

async fn keeps_the_contract(publish: Publish) {
    let cluster = Cluster::start();
    let connect = || {
        let builder = RedisBackend::builder(cluster.url()).publish(publish);
        // A busy machine must not cause timeouts.
        builder.response_timeout(10 * SECOND).connect()
    };
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    assert_eq!(one.warnings(), <&[String]>::default());
    passes_conformance(&one, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_with_sharded_messages_passes_conformance() {
    keeps_the_contract(Publish::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_with_plain_messages_passes_conformance() {
    keeps_the_contract(Publish::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_with_both_messages_passes_conformance() {
    if version() >= 7 {
        return keeps_the_contract(Publish::Both).await;
    }
    // Redis 6 has no sharded messages, and the error says so.
    let cluster = Cluster::start();
    let builder = RedisBackend::builder(cluster.url()).publish(Publish::Both);
    let refused = builder.connect().await.unwrap_err();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    assert!(
        format!("{refused:?}").contains("UnknownCommand(\"SPUBLISH\")"),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_channel_and_counter_share_slot() {
    let cluster = Cluster::start();
    let (here, there) = managers(cluster.url(), LONG).await;
    for key in [
        "a", "{user}:1", "x{y}{z}", "a{", "}", "{}", "ü 1", "order:42",
    ] {
        let guard = here.acquire(key).await.unwrap();
        let waiting = waiter(&there, key).await;
        let name = format!("lock:{}", LockKey::new(key).as_str());
        let node = cluster.node_of(&name);
        assert_eq!(cluster.cli(node, &["EXISTS", &name]), "1", "{name}");
        let slot = cluster.slot(&name);
        let counters = cluster.keys();
        let counters = counters.iter().filter(|key| key.contains("fencing-token:"));
        assert!(counters.map(|key| cluster.slot(key)).any(|it| it == slot));
        eventually("it subscribes", || has_subscriptions(&cluster, node)).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(
            released.elapsed() < 500 * MS,
            "{key}: woken by the poll, not by the message"
        );
        drop(next);
        eventually("released", || {
            here.snapshot().is_idle() && there.snapshot().is_idle()
        })
        .await;
    }
    nothing_is_left(&cluster, &[&here, &there]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_batch_by_slot_across_nodes() {
    let cluster = Cluster::start();
    let locks = manager(cluster.url(), SHORT).await;
    let keys = (0..90).map(|n| format!("key {n}"));
    let tagged = (0..200).map(|n| format!("{{user}}:{n}"));
    let guards = join_all(
        keys.chain(tagged)
            .map(|key| locks.acquire(key).into_future()),
    )
    .await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let calls = || -> u64 { (0..6).map(|node| cluster.node(node).calls("evalsha")).sum() };
    sleep(SHORT).await;
    let before = calls();
    sleep(2 * SHORT).await;
    let sent = calls() - before;
    assert!(guards.iter().all(|guard| guard.is_held()));
    // 90 slots take one call each, and 200 keys of one slot take three. At least five rounds run.
    assert!((5 * 92..=8 * 95).contains(&sent), "{sent} calls");
    drop(guards);
    nothing_is_left(&cluster, &[&locks]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_node_key_set_is_held_atomically() {
    let cluster = Cluster::start();
    let (here, there) = managers(cluster.url(), LONG).await;
    let keys: Vec<_> = key_of_each(&cluster)
        .into_iter()
        .map(|(_, key)| key)
        .collect();
    let all = || LockKeys::from_iter(keys.iter().map(LockKey::new));
    let last = there.acquire(keys[2].as_str()).await.unwrap();
    let busy = here.acquire(all()).wait(300 * MS).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    for key in &keys[..2] {
        let name = format!("lock:{key}");
        let exists = || cluster.cli(cluster.node_of(&name), &["EXISTS", &name]);
        within(SECOND, "released", || exists() == "0").await;
        drop(there.acquire(key.as_str()).no_wait().await.unwrap());
    }
    drop(last);
    let guard = here.acquire(all()).await.unwrap();
    assert_eq!(guard.keys().len(), 3);
    for key in &keys {
        let busy = there.acquire(key.as_str()).no_wait().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
    }
    // Acquires of overlapping keys in any order must not deadlock.
    drop(guard);
    let contenders = (0..20).map(|n| {
        let locks = if n % 2 == 0 { &here } else { &there };
        let keys = LockKeys::from_iter([&keys[n % 3], &keys[(n + 1) % 3]].map(LockKey::new));
        locks.acquire(keys).wait(PATIENCE).into_future()
    });
    for held in join_all(contenders.map(|it| async { it.await.map(drop) })).await {
        held.unwrap();
    }
    nothing_is_left(&cluster, &[&here, &there]).await;
}

#[tokio::test]
async fn connect_reports_cluster_scheme_mismatch() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", "redis+cluster://");
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let cluster = Cluster::start();
    let alone = format!("redis://127.0.0.1:{}", cluster.node(0).port());
    let error = LockManager::connect(&alone).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let said = std::error::Error::source(&error).and_then(|it| it.source());
    assert!(said.unwrap().to_string().contains("`redis+cluster`"));
    let nobody = "redis+cluster://127.0.0.1:1,127.0.0.1:2";
    let error = LockManager::connect(nobody).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    // One of the seeds is enough.
    let port = cluster.node(2).port();
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{port}");
    let backend = RedisBackend::builder(url).connect().await.unwrap();
    assert_eq!(backend.inspect(&LockKey::new("k")).await.unwrap(), None);
}
