//! Locks and subscriptions in slots that move.

use std::future::IntoFuture as _;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::redis::Publish;
use tower_lock::{LockManager, RedisBackend};

use super::support::{SHORT, has_subscriptions, key_of_each, nothing_is_left, waiter};
use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, SECOND, eventually, prompt_managers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_slot_migration() {
    let cluster = Cluster::start();
    let (here, there) = prompt_managers(cluster.url(), SHORT).await;
    let (slot, from) = (cluster.slot("{user}"), cluster.node_of("{user}"));
    let to = cluster
        .primaries()
        .into_iter()
        .find(|it| *it != from)
        .unwrap();
    let held = |n: usize| here.acquire(format!("{{user}}:{n}")).into_future();
    let mut guards = join_all((0..20).map(held)).await;
    let token = guards[0].as_ref().unwrap().fencing_token();
    let waiting = waiter(&there, "{user}:0").await;
    eventually("it subscribes", || has_subscriptions(&cluster, from)).await;

    cluster.begin_migration(slot, from, to);
    // The migration outlasts a lease, so renewals and releases must follow their keys.
    sleep(2 * SHORT).await;
    let late = tokio::spawn(there.acquire("{user}:new").wait(PATIENCE).into_future());
    // Only half of the keys move first, so neither node can serve a command for both halves.
    let port = cluster.node(to).port().to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "1000", "KEYS"];
    let half: Vec<_> = (0..20)
        .step_by(2)
        .map(|n| format!("lock:{{user}}:{n}"))
        .collect();
    migrate.extend(half.iter().map(String::as_str));
    assert_eq!(cluster.cli(from, &migrate), "OK");
    sleep(2 * SHORT).await;
    assert!(
        guards.iter().all(|guard| guard.as_ref().unwrap().is_held()),
        "renewed by halves"
    );
    cluster.move_keys(slot, from, to);
    sleep(2 * SHORT).await;
    assert!(
        guards.iter().all(|guard| guard.as_ref().unwrap().is_held()),
        "renewed in between"
    );
    drop(guards.split_off(10));
    cluster.end_migration(slot, from, to).await;
    sleep(2 * SHORT).await;
    assert!(
        guards.iter().all(|guard| guard.as_ref().unwrap().is_held()),
        "renewed afterwards"
    );

    let late = timeout(2 * SECOND, late)
        .await
        .expect("granted at the end of the move");
    let late = late.unwrap().unwrap();
    assert!(late.fencing_token() > token);
    // The subscription moves with the slot.
    eventually("subscribed at the new node", || {
        has_subscriptions(&cluster, to)
    })
    .await;
    let first = guards.remove(0).unwrap();
    let released = Instant::now();
    first.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(
        released.elapsed() < 500 * MS,
        "woken by the poll, not by the message"
    );
    assert!(next.fencing_token() > token);
    drop((guards, late, next));
    nothing_is_left(&cluster, &[&here, &there]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_subscriptions_follow_slot_migration() {
    let cluster = Cluster::start();
    let connect = async || {
        let backend = RedisBackend::builder(cluster.url()).publish(Publish::Plain);
        let locks = LockManager::builder(backend.connect().await.unwrap());
        locks.watchdog_timeout(SHORT).build().unwrap()
    };
    let (here, there) = (connect().await, connect().await);
    let (slot, from) = (cluster.slot("{user}"), cluster.node_of("{user}"));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    let to = to.unwrap();
    // A lock has three channels, of which this is the one of its releases.
    let of_lock = |name: &&str| !name.contains('%');
    let channels = |node| {
        let names = cluster.cli(node, &["PUBSUB", "CHANNELS"]);
        names.lines().filter(of_lock).count()
    };
    let guard = here.acquire("{user}").await.unwrap();
    let waiting = waiter(&there, "{user}").await;
    // A second subscription stays at the node, so its connection stays open.
    let mut keys = key_of_each(&cluster).into_iter();
    let (_, staying) = keys.find(|(node, _)| *node == from).unwrap();
    let other_guard = here.acquire(staying.as_str()).await.unwrap();
    let other_waiting = waiter(&there, &staying).await;
    // Messages from another node arrive late, so waiters subscribe at the node of the key.
    eventually("they subscribe", || channels(from) == 2).await;
    assert_eq!(channels(to), 0);

    cluster.begin_migration(slot, from, to);
    cluster.move_keys(slot, from, to);
    cluster.end_migration(slot, from, to).await;
    eventually("subscribed at the new node", || channels(to) == 1).await;
    eventually("and not at the old one", || channels(from) == 1).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert!(released.elapsed() < 500 * MS, "woken by the poll");
    drop(other_guard);
    drop(other_waiting.await.unwrap().unwrap());
    eventually("unsubscribed", || channels(from) + channels(to) == 0).await;
    nothing_is_left(&cluster, &[&here, &there]).await;
}
