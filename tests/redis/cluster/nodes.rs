//! Locks in a real cluster: slots, resharding, and nodes that die or hang.

use std::future::IntoFuture as _;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::conformance;
use tower_lock::backend::redis::Publish;
use tower_lock::{
    Backend as _, ConnectError, ErrorKind, LockGuard, LockKey, LockKeys, LockManager, RedisBackend,
};

use crate::support::cluster::Cluster;
use crate::support::engine::{
    MS, PATIENCE, SECOND, eventually, fails_at_its_deadline, lost_at_its_deadline, manager, within,
};
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

/// For locks with frequent renewals.
const SHORT: Duration = Duration::from_millis(1_500);
/// For locks that must survive a failover.
const LONG: Duration = Duration::from_secs(12);

/// Returns a key of each primary, in order.
fn key_of_each(cluster: &Cluster) -> Vec<(usize, String)> {
    let found = cluster.primaries().into_iter().map(|primary| {
        let key = (0..).map(|n| format!("key {n}"));
        let mut of_primary = key.filter(|key| cluster.node_of(&format!("lock:{key}")) == primary);
        (primary, of_primary.next().unwrap())
    });
    found.collect()
}

/// Waits until only the counters are left.
async fn nothing_is_left(cluster: &Cluster, managers: &[&LockManager]) {
    within(PATIENCE, "nothing left", || {
        let keys = cluster.keys();
        let is_counter = |key: &String| key.starts_with("lock:{fencing-token:");
        managers.iter().all(|locks| locks.snapshot().is_idle()) && keys.iter().all(is_counter)
    })
    .await;
}

/// Counts the subscribers of a key's releases: sharded ones at the key's node, or plain ones at any
/// node on Redis 6.
fn subscribers(cluster: &Cluster, key: &str) -> u64 {
    let channel = format!("redisson_lock__channel:{{lock:{key}}}");
    let count = |node: &RedisServer, kind| -> u64 {
        let answer = node.cli(&["PUBSUB", kind, &channel]);
        let count = answer.lines().last().and_then(|line| line.parse().ok());
        count.unwrap()
    };
    if version() >= 7 {
        let node = cluster.node_of(&format!("lock:{key}"));
        return count(cluster.node(node), "SHARDNUMSUB");
    }
    let running = cluster.nodes().iter().filter(|node| node.runs());
    running.map(|node| count(node, "NUMSUB")).sum()
}

/// Returns `true` if a node has sharded subscriptions. On Redis 6, any node may have plain ones.
fn has_subscriptions(cluster: &Cluster, node: usize) -> bool {
    if version() >= 7 {
        return !cluster.cli(node, &["PUBSUB", "SHARDCHANNELS"]).is_empty();
    }
    let channels = |node: &RedisServer| node.cli(&["PUBSUB", "CHANNELS", "redisson*"]);
    let mut running = cluster.nodes().iter().filter(|node| node.runs());
    running.any(|node| !channels(node).is_empty())
}

/// Spawns an acquire and returns once it is in the queue.
async fn waiter(
    locks: &LockManager,
    key: &str,
) -> tokio::task::JoinHandle<Result<LockGuard, tower_lock::Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("it waits", || locks.snapshot().waiting > before).await;
    waiter
}

async fn keeps_the_contract(publish: Publish) {
    let cluster = Cluster::start();
    let connect = || {
        let builder = RedisBackend::builder(cluster.url()).publish(publish);
        // A busy machine must not cause timeouts.
        builder.response_timeout(10 * SECOND).connect()
    };
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    assert_eq!(one.warnings(), <&[String]>::default());
    conformance::all(&one, &other).await;
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
        format!("{refused:?}").contains("UnknownCommand(\"SSUBSCRIBE\")"),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_channel_and_counter_share_slot() {
    let cluster = Cluster::start();
    let (here, there) = (
        manager(cluster.url(), LONG).await,
        manager(cluster.url(), LONG).await,
    );
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
    let (here, there) = (
        manager(cluster.url(), LONG).await,
        manager(cluster.url(), LONG).await,
    );
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_slot_migration() {
    let cluster = Cluster::start();
    let (here, there) = (
        manager(cluster.url(), SHORT).await,
        manager(cluster.url(), SHORT).await,
    );
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_node_affects_only_its_own_keys() {
    let cluster = Cluster::start_with(&["--cluster-node-timeout", "60000"]);
    let patient = || async {
        // The response timeout is much longer than the lease.
        let backend = RedisBackend::builder(cluster.url()).response_timeout(10 * SECOND);
        let backend = backend.connect().await.unwrap();
        let locks = LockManager::builder(backend).watchdog_timeout(SHORT);
        locks.build().unwrap()
    };
    let (here, there) = (patient().await, patient().await);
    let keys = key_of_each(&cluster);
    let (still, own) = &keys[0];
    // Enough locks that renewals for several nodes would share commands if they could.
    let many = (0..300).map(|n| here.acquire(format!("many {n}")).into_future());
    let many: Vec<_> = join_all(many)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let (mine, others): (Vec<_>, Vec<_>) = many
        .into_iter()
        .partition(|guard| cluster.node_of(&format!("lock:{}", guard.key().as_str())) == *still);
    assert!(mine.len() > 50 && others.len() > 100);

    cluster.stop_process(*still);
    let until = Instant::now() + 3 * SHORT;
    let mut longest = Duration::ZERO;
    let late = there.acquire(own.as_str());
    let late = tokio::spawn(async move { fails_at_its_deadline(late, 2 * SECOND).await });
    let lost = join_all(mine.iter().map(|guard| lost_at_its_deadline(guard)));
    let busy = async {
        while Instant::now() < until {
            for (_, key) in &keys[1..] {
                let start = Instant::now();
                there
                    .acquire(key.as_str())
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
                longest = longest.max(start.elapsed());
            }
            assert!(
                others.iter().all(|guard| guard.is_held()),
                "renewed on time"
            );
            sleep(10 * MS).await;
        }
    };
    let (_, ()) = futures_util::future::join(lost, busy).await;
    assert_eq!(late.await.unwrap().kind(), ErrorKind::Unavailable);
    assert!(longest < SECOND, "the other nodes reply in {longest:?}");
    cluster.continue_process(*still);
    let again = there.acquire(own.as_str()).wait(PATIENCE).await.unwrap();
    drop((mine, others, again));
    nothing_is_left(&cluster, &[&here, &there]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_of_killed_node_keeps_its_locks() {
    let mut cluster = Cluster::start();
    let (here, there) = (
        manager(cluster.url(), LONG).await,
        manager(cluster.url(), LONG).await,
    );
    let (node, key) = key_of_each(&cluster).remove(1);
    let slot = cluster.slot(&format!("lock:{key}"));
    let guard = here.acquire(key.as_str()).await.unwrap();
    let token = guard.fencing_token();
    let waiting = waiter(&there, &key).await;
    eventually("it subscribes", || subscribers(&cluster, &key) == 1).await;
    // By then the replica has the lease.
    sleep(100 * MS).await;
    let end = Instant::now() + guard.remaining();
    cluster.kill(node);
    cluster.failover(slot, node).await;
    let over = Instant::now();
    let free = here
        .acquire(format!("{{{key}}}"))
        .wait(PATIENCE)
        .await
        .unwrap();
    assert!(
        over.elapsed() < SECOND,
        "the next grant after {:?}",
        over.elapsed()
    );
    drop(free);
    within(PATIENCE, "renewed there", || {
        Instant::now() + guard.remaining() > end + 10 * MS
    })
    .await;
    assert!(guard.is_held());
    within(SECOND, "the subscription moved", || {
        subscribers(&cluster, &key) == 1
    })
    .await;
    guard.release().await.unwrap();
    let released = Instant::now();
    let next = waiting.await.unwrap().unwrap();
    assert!(
        released.elapsed() < 500 * MS,
        "woken by the poll, not by the message"
    );
    assert!(next.fencing_token() > token);
    drop(next);
    cluster.restart(node).await;
    nothing_is_left(&cluster, &[&here, &there]).await;
}

/// While slots have no node, all nodes reject all keys by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_outage_is_unavailable_and_keeps_locks() {
    let mut cluster = Cluster::start();
    let (here, there) = (
        manager(cluster.url(), LONG).await,
        manager(cluster.url(), LONG).await,
    );
    let mut keys = key_of_each(&cluster).into_iter();
    let ((gone, _), (up, key)) = (keys.next().unwrap(), keys.next().unwrap());
    let replica = cluster.replica_of(gone);
    let guard = here.acquire(key.as_str()).await.unwrap();
    // The replica dies first, so no node can fail over.
    cluster.kill(replica);
    cluster.kill(gone);
    let name = format!("lock:{key}");
    let refusal = || cluster.node(up).command(&["EXISTS", &name]);
    within(PATIENCE, "the others refuse", || {
        let refused = refusal().err();
        refused.is_some_and(|error| error.code() == Some("CLUSTERDOWN"))
    })
    .await;

    let late = there.acquire(format!("{{{key}}}:other"));
    let error = fails_at_its_deadline(late, SECOND).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(refusal().is_err(), "the outage ended too early");
    let late = there.acquire(format!("{{{key}}}:other")).wait(PATIENCE);
    let late = tokio::spawn(late.into_future());
    cluster.restart_all().await;
    let late = late.await.unwrap().expect("within its wait");
    assert!(guard.is_held(), "its node kept it");
    guard.release().await.unwrap();
    drop(late);
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

/// The nodes report other names than the URL, so the seeds are no known nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refreshes_of_degraded_cluster_keep_connections() {
    let mut cluster = Cluster::start();
    let url = cluster.url().replace("127.0.0.1", "localhost");
    let locks = manager(url, LONG).await;
    let (dead, key) = key_of_each(&cluster).swap_remove(0);
    let replica = cluster.replica_of(dead);
    cluster.kill(replica);
    cluster.kill(dead);
    let waiting = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    let sum = |count: &dyn Fn(&RedisServer) -> u64| -> u64 {
        let primaries = cluster.primaries().into_iter();
        primaries.map(|it| count(cluster.node(it))).sum()
    };
    let asked = || sum(&|node| node.calls("cluster|slots"));
    let opened = || {
        sum(&|node| {
            let stats = node.cli(&["INFO", "stats"]);
            let mut lines = stats.lines();
            let count = lines.find_map(|it| it.strip_prefix("total_connections_received:"));
            count.unwrap().trim().parse().unwrap()
        })
    };
    // Until the seeds have been asked.
    let before = asked();
    eventually("refreshes", || asked() >= before + 10).await;
    let (before, connections) = (asked(), opened());
    eventually("more refreshes", || asked() >= before + 40).await;
    let connections = opened() - connections;
    assert!(connections <= 3, "{connections} connections");
    waiting.abort();
}
