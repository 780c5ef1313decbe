//! The servers that other tests start: that they do what those tests take for granted.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use support::sentinel::SentinelSet;

/// An idle machine takes a third of it.
const FAILOVER: Duration = Duration::from_secs(10);

#[tokio::test]
async fn sentinels_replace_a_killed_primary_and_take_it_back_as_a_replica() {
    let mut set = SentinelSet::start();
    let first = set.primary();
    set.cli(first, &["SET", "kept", "1"]);
    assert_eq!(set.cli(first, &["WAIT", "2", "5000"]), "2");

    assert_eq!(set.kill_primary(), first);
    let took = set.failover().await;
    assert!(took < FAILOVER, "{took:?}");
    let second = set.primary();
    assert_ne!(second, first);
    assert_eq!(set.cli(second, &["GET", "kept"]), "1");

    set.restart(first).await;
    assert_eq!(set.primary(), second, "{}", set.logs());
    assert!(set.cli(first, &["ROLE"]).starts_with("slave"));
    assert_eq!(set.cli(first, &["GET", "kept"]), "1");

    // And once more: the set is as good as new.
    set.kill_primary();
    set.failover().await;
    assert_ne!(set.primary(), second);
}

#[tokio::test]
async fn a_stopped_primary_of_sentinels_takes_itself_for_one_until_it_is_told_otherwise() {
    let mut set = SentinelSet::start();
    let first = set.stop_primary();
    set.failover().await;
    set.continue_node(first);
    assert!(set.cli(first, &["ROLE"]).starts_with("master"));
    set.in_order_again().await;
    assert!(set.cli(first, &["ROLE"]).starts_with("slave"));
}

#[tokio::test]
async fn stopped_replicas_of_sentinels_acknowledge_nothing() {
    let set = SentinelSet::start();
    let primary = set.primary();
    set.stop_replicas();
    set.cli(primary, &["SET", "key", "1"]);
    assert_eq!(set.cli(primary, &["WAIT", "1", "100"]), "0");
    set.continue_replicas();
    assert_eq!(set.cli(primary, &["WAIT", "2", "5000"]), "2");
    assert_eq!(set.primary(), primary);
}

#[tokio::test]
async fn sentinels_and_their_nodes_have_passwords_of_their_own() {
    let nodes = ["--requirepass", "of-nodes", "--masterauth", "of-nodes"];
    let mut set = SentinelSet::start_with(&nodes, &["--requirepass", "of-sentinels"]);
    let stranger = |port: u16, password: &str| {
        let url = format!("redis://:{password}@127.0.0.1:{port}");
        let client = redis::Client::open(url).unwrap();
        let ping = |mut connection| redis::cmd("PING").exec(&mut connection);
        client.get_connection().and_then(ping).is_ok()
    };
    let (node, sentinel) = (set.node(0).port(), set.sentinel(0).port());
    assert!(stranger(node, "of-nodes") && !stranger(node, "of-sentinels"));
    assert!(stranger(sentinel, "of-sentinels") && !stranger(sentinel, "of-nodes"));
    let killed = set.kill_primary();
    set.failover().await;
    set.restart(killed).await;
}
