//! The subscriptions of redis-rs. If a test fails, the library may be used: see "sharded subscriptions" in
//! ARCHITECTURE.md.

use std::time::Duration;

use redis::aio::ConnectionManagerConfig;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::cluster::{builder, connect, key_at};
use crate::support::cluster::{Cluster, add_all_slots};
use crate::support::engine::{PATIENCE, eventually};
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

/// A library that mends the fault may do so a little later.
const CHECKS: u32 = 20;
const BETWEEN_CHECKS: Duration = Duration::from_millis(50);

async fn next(pushes: &mut UnboundedReceiver<PushInfo>) -> PushKind {
    let push = timeout(PATIENCE, pushes.recv()).await;
    push.expect("a push").unwrap().kind
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_slot_ends_subscription_for_good() {
    // Redis 6 has no sharded channels.
    if version() < 7 {
        return;
    }
    let cluster = Cluster::start();
    let (sender, mut pushes) = unbounded_channel();
    let builder = builder(&cluster).use_protocol(ProtocolVersion::RESP3);
    let mut client = connect(builder.push_sender(sender)).await;
    let channel = key_at(&cluster, 0);
    client.ssubscribe(&channel).await.unwrap();
    assert_eq!(next(&mut pushes).await, PushKind::SSubscribe);
    cluster.migrate_slot(cluster.slot(&channel), 0, 1).await;
    assert_eq!(next(&mut pushes).await, PushKind::SUnsubscribe);
    // The first read is redirected, and the client refreshes its slots.
    for _ in 0..3 {
        let mut read = redis::cmd("GET");
        read.arg(&channel).exec_async(&mut client).await.unwrap();
    }
    for _ in 0..CHECKS {
        let subscribers = cluster.cli(1, &["PUBSUB", "SHARDNUMSUB", &channel]);
        assert_eq!(subscribers, format!("{channel}\n0"));
        sleep(BETWEEN_CHECKS).await;
    }
}

#[tokio::test]
async fn unrequested_end_replies_to_oldest_command() {
    if version() < 7 {
        return;
    }
    let options = [
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "no",
    ];
    let server = RedisServer::start_with(&options);
    add_all_slots(&server);
    let ok = || server.cli(&["CLUSTER", "INFO"]).contains("state:ok");
    eventually("a ready cluster", ok).await;
    let client = Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.unwrap();
    let mut subscribe = redis::cmd("SSUBSCRIBE");
    subscribe
        .arg("k")
        .exec_async(&mut connection)
        .await
        .unwrap();
    let oldest = tokio::spawn(async move {
        let mut pop = redis::cmd("BLPOP");
        pop.arg("list")
            .arg(0)
            .query_async::<Value>(&mut connection)
            .await
    });
    let clients = || server.cli(&["INFO", "clients"]);
    eventually("it blocks", || clients().contains("blocked_clients:1")).await;
    server.cli(&[
        "CLUSTER",
        "DELSLOTS",
        &server.cli(&["CLUSTER", "KEYSLOT", "k"]),
    ]);
    let reply = timeout(PATIENCE, oldest)
        .await
        .expect("a reply")
        .unwrap()
        .unwrap();
    let kind = PushKind::SUnsubscribe;
    assert!(
        matches!(&reply, Value::Push { kind: it, .. } if *it == kind),
        "{reply:?}"
    );
}

/// A restored subscription is reported by a push, and a rejected one by nothing.
#[tokio::test]
async fn failed_restore_of_subscription_is_silent() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "some", "on", ">secret", "~*", "&*", "+@all",
    ]);
    let url = format!("{}?protocol=resp3", server.url_of("some", "secret"));
    let (sender, mut pushes) = unbounded_channel();
    let config = ConnectionManagerConfig::new().set_push_sender(sender);
    let config = config.set_automatic_resubscription();
    let client = Client::open(url).unwrap();
    let mut manager = client
        .get_connection_manager_with_config(config)
        .await
        .unwrap();
    manager.subscribe("c").await.unwrap();
    assert_eq!(next(&mut pushes).await, PushKind::Subscribe);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(next(&mut pushes).await, PushKind::Disconnection);
    assert_eq!(next(&mut pushes).await, PushKind::Subscribe);
    // This ends the connection, too.
    server.cli(&["ACL", "SETUSER", "some", "resetchannels"]);
    assert_eq!(next(&mut pushes).await, PushKind::Disconnection);
    redis::cmd("PING").exec_async(&mut manager).await.unwrap();
    for _ in 0..CHECKS {
        assert_eq!(server.cli(&["PUBSUB", "NUMSUB", "c"]), "c\n0");
        assert!(pushes.is_empty());
        sleep(BETWEEN_CHECKS).await;
    }
}
