//! The connections to sentinels, and the primary while a majority of the sentinels is lost.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::{LockManager, RedisBackend};

use crate::support::engine::{MS, PATIENCE, SECOND, prompt_manager, pttl};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

/// Locks survive a failover.
const LEASE: Duration = Duration::from_secs(30);
/// From the moment at which most sentinels name the new primary: the response timeout of a connection that
/// hangs, the interval of requests, and a second for a busy machine.
const REPLACED: Duration = Duration::from_millis(500 + 250 + 1_000);
/// A later failover counts after 2 s without a majority.
const UNELECTED: Duration = Duration::from_secs(4);
const SENTINELS: usize = 3;

async fn gates(set: &mut SentinelSet) -> (Vec<Proxy>, String) {
    let mut gates = Vec::new();
    for sentinel in 0..SENTINELS {
        gates.push(Proxy::start(set.sentinel(sentinel).port()).await);
    }
    let addresses = gates
        .iter()
        .map(|gate| format!("127.0.0.1:{}", gate.port()));
    let addresses = addresses.collect::<Vec<_>>().join(",");
    let url = format!("redis+sentinel://{addresses}/{}", set.service());
    (gates, url)
}

/// Acquires a key within the limit. It must be granted by the current primary.
async fn is_granted(locks: &LockManager, set: &SentinelSet, limit: Duration) {
    let start = Instant::now();
    let key = uuid::Uuid::new_v4().to_string();
    let acquire = timeout(limit, locks.acquire(&*key).wait(PATIENCE)).await;
    let guard = acquire.unwrap_or_else(|_| panic!("no grant within {limit:?}"));
    let guard = guard.unwrap();
    eprintln!("granted after {:?}", start.elapsed());
    assert!(pttl(set.node(set.primary()), &key) > 0, "granted elsewhere");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sentinel_connections_are_replaced() {
    let mut set = SentinelSet::start();
    let (gates, url) = gates(&mut set).await;
    let locks = prompt_manager(url, LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    for gate in &gates {
        gate.freeze();
    }
    set.kill_primary();
    set.failover().await;
    is_granted(&locks, &set, REPLACED).await;
    drop(guard);
}

/// All addresses accept connections again, and none of the old ones ever replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_sentinel_connections_are_replaced() {
    let mut set = SentinelSet::start();
    let (gates, url) = gates(&mut set).await;
    let locks = prompt_manager(url, LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    for gate in &gates {
        gate.swallow(crate::support::proxy::Swallow::Both);
    }
    sleep(100 * MS).await;
    for gate in &gates {
        gate.heal();
    }
    set.kill_primary();
    set.failover().await;
    is_granted(&locks, &set, REPLACED).await;
    drop(guard);
}

/// Returns how many connections the server has ever accepted.
fn connections(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "stats"]);
    let prefix = "total_connections_received:";
    let count = stats.lines().find_map(|line| line.strip_prefix(prefix));
    count.unwrap().trim().parse().unwrap()
}

/// Two sentinels decide before the third has replied, or has accepted the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_sentinel_keeps_its_connection() {
    let mut set = SentinelSet::start();
    let (gates, url) = gates(&mut set).await;
    gates[2].delay(100 * MS);
    let locks = prompt_manager(url, LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    let before = connections(set.sentinel(2));
    sleep(3 * SECOND).await;
    let (accepted, since) = (gates[2].accepted(), connections(set.sentinel(2)) - before);
    assert_eq!(accepted, 1, "connections to the slow sentinel");
    assert!(since <= 1, "{since} connections in three seconds");
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_sentinel_connections_are_replaced_once() {
    let mut set = SentinelSet::start();
    let (gates, url) = gates(&mut set).await;
    let locks = prompt_manager(url, LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    sleep(SECOND).await;
    for gate in &gates {
        gate.cut();
    }
    sleep(SECOND).await;
    let accepted: Vec<_> = gates.iter().map(Proxy::accepted).collect();
    assert_eq!(accepted, [2, 2, 2]);
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_majority_announces_new_primary() {
    let mut set = SentinelSet::start();
    let locks = prompt_manager(set.url(set.service()), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    for sentinel in 0..2 {
        set.replace_sentinel(sentinel);
    }
    set.sentinels_agree().await;
    let old = set.kill_primary();
    set.failover().await;
    is_granted(&locks, &set, UNELECTED).await;
    set.restart(old).await;
    // A second failover, from a primary that no majority of the URL ever named.
    set.kill_primary();
    set.failover().await;
    is_granted(&locks, &set, UNELECTED).await;
    drop(guard);
}

/// A sentinel that missed the failover is the only one left. It names the old primary, which still
/// regards itself as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_sentinel_announces_nothing() {
    let mut set = SentinelSet::start();
    let locks = prompt_manager(set.url(set.service()), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    set.sentinel(0).kill();
    let old = set.stop_primary();
    set.failover().await;
    is_granted(&locks, &set, REPLACED).await;
    let new = set.primary();
    for sentinel in 1..SENTINELS {
        set.sentinel(sentinel).kill();
    }
    set.continue_node(old);
    set.sentinel(0).launch_again();
    let named = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", set.service()];
    let named = set.sentinel(0).cli(&named);
    let old_port = set.node(old).port().to_string();
    assert!(named.ends_with(&old_port), "not stale: {named}");
    assert!(set.cli(old, &["ROLE"]).starts_with("master"));
    set.cli(old, &["FLUSHALL"]);
    set.cli(new, &["CLIENT", "KILL", "TYPE", "normal"]);
    let end = Instant::now() + UNELECTED;
    while Instant::now() < end {
        let granted = timeout(2 * SECOND, locks.acquire("next")).await;
        let granted = granted.expect("the known primary stays").unwrap();
        assert!(pttl(set.node(new), "next") > 0);
        granted.release().await.unwrap();
        assert_eq!(set.cli(old, &["KEYS", "*"]), "", "granted by the old one");
        sleep(100 * MS).await;
    }
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_epochs_finds_primary() {
    let mut set = SentinelSet::start();
    for sentinel in 0..SENTINELS {
        let rules = "on >secret +sentinel|get-master-addr-by-name";
        let rules: Vec<_> = rules.split(' ').collect();
        let command = [&["ACL", "SETUSER", "asker"], &rules[..]].concat();
        set.sentinel(sentinel).cli(&command);
    }
    let builder = RedisBackend::builder(set.url(set.service())).sentinel_auth("asker", "secret");
    let locks = LockManager::builder(builder.connect().await.unwrap());
    let locks = locks.build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    set.kill_primary();
    set.failover().await;
    is_granted(&locks, &set, REPLACED).await;
    drop(guard);
}
