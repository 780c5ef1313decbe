//! Keys, waiters and subscriptions of each node.

use std::future::IntoFuture as _;
use std::time::Duration;

use tower_lock::{LockGuard, LockManager};

use crate::support::cluster::Cluster;
use crate::support::engine::{PATIENCE, eventually, within};
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

/// For locks with frequent renewals.
pub(super) const SHORT: Duration = Duration::from_millis(1_500);

/// For locks that must survive a failover.
pub(super) const LONG: Duration = Duration::from_secs(12);

/// Returns a key of each primary, in order.
pub(super) fn key_of_each(cluster: &Cluster) -> Vec<(usize, String)> {
    let found = cluster.primaries().into_iter().map(|primary| {
        let key = (0..).map(|n| format!("key {n}"));
        let mut of_primary = key.filter(|key| cluster.node_of(&format!("lock:{key}")) == primary);
        (primary, of_primary.next().unwrap())
    });
    found.collect()
}

/// Waits until only the counters are left.
pub(super) async fn nothing_is_left(cluster: &Cluster, managers: &[&LockManager]) {
    within(PATIENCE, "nothing left", || {
        let keys = cluster.keys();
        let is_counter = |key: &String| key.starts_with("lock:{fencing-token:");
        managers.iter().all(|locks| locks.snapshot().is_idle()) && keys.iter().all(is_counter)
    })
    .await;
}

/// Counts the subscribers of a key's releases: sharded ones at the key's node, or plain ones at any
/// node on Redis 6.
pub(super) fn subscribers(cluster: &Cluster, key: &str) -> u64 {
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
pub(super) fn has_subscriptions(cluster: &Cluster, node: usize) -> bool {
    if version() >= 7 {
        return !cluster.cli(node, &["PUBSUB", "SHARDCHANNELS"]).is_empty();
    }
    let channels = |node: &RedisServer| node.cli(&["PUBSUB", "CHANNELS", "redisson*"]);
    let mut running = cluster.nodes().iter().filter(|node| node.runs());
    running.any(|node| !channels(node).is_empty())
}

/// Spawns an acquire and returns once it is in the queue.
pub(super) async fn waiter(
    locks: &LockManager,
    key: &str,
) -> tokio::task::JoinHandle<Result<LockGuard, tower_lock::Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("it waits", || locks.snapshot().waiting > before).await;
    waiter
}
