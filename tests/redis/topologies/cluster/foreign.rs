//! Nodes that belong to another cluster now.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{ErrorKind, RedisBackend};
use tracing_subscriber::filter::LevelFilter;

use crate::support::cluster::add_all_slots;
use crate::support::engine::{PATIENCE, SECOND, eventually, prompt_managers, within};
use crate::support::log::Log;
use crate::support::redis_server::{RedisServer, node_port};

const LEASE: Duration = Duration::from_secs(30);
const LINE: &str = "lock nodes are gone and another cluster replied";

/// A node that knows no other.
fn lone_node() -> RedisServer {
    let basis = [
        ["--cluster-enabled", "yes"],
        ["--cluster-node-timeout", "1000"],
        ["--cluster-replica-validity-factor", "0"],
        ["--repl-diskless-sync-delay", "0"],
    ];
    let node = RedisServer::start_with(&[basis.as_flattened(), node_port()].concat());
    // Two nodes with the same epoch would have to resolve the conflict before a takeover.
    let epoch = node.port().to_string();
    node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
    node
}

/// Makes the node a cluster of its own.
async fn serve_all_slots(node: &RedisServer) {
    add_all_slots(node);
    eventually("all slots", || is_ok(node)).await;
}

fn is_ok(node: &RedisServer) -> bool {
    node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
}

fn url(nodes: &[&RedisServer]) -> String {
    let addresses: Vec<_> = nodes.iter().map(|node| node.address()).collect();
    format!("redis+cluster://{}", addresses.join(","))
}

/// Adds a node to the cluster of another one.
async fn meet(node: &RedisServer, newcomer: &RedisServer) {
    let (port, node_port) = (newcomer.port().to_string(), newcomer.node_port());
    node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &node_port]);
    let knows_both = |node: &RedisServer| {
        let nodes = node.cli(&["CLUSTER", "NODES"]);
        nodes.lines().count() == 2 && !nodes.contains("handshake")
    };
    eventually("both nodes", || knows_both(node) && knows_both(newcomer)).await;
}

/// Makes the newcomer a replica of the node. Returns when both list it, in sync.
async fn replicate(node: &RedisServer, newcomer: &RedisServer) {
    meet(node, newcomer).await;
    let id = node.cli(&["CLUSTER", "MYID"]);
    newcomer.cli(&["CLUSTER", "REPLICATE", &id]);
    let is_listed = |at: &RedisServer| {
        let slots = at.cli(&["CLUSTER", "SLOTS"]);
        [node, newcomer]
            .iter()
            .all(|it| slots.contains(&it.cli(&["CLUSTER", "MYID"])))
    };
    eventually("a replica in sync", || {
        is_listed(node) && is_listed(newcomer)
    })
    .await;
}

/// Makes the replica the primary.
async fn take_over(replica: &RedisServer, primary: &RedisServer) {
    replica.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    eventually("the takeover", || {
        is_ok(replica) && primary.cli(&["ROLE"]).starts_with("slave")
    })
    .await;
}

fn logged<F: Future>(work: impl FnOnce(Log) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let log = Log::default();
    log.clone()
        .record(LevelFilter::INFO, || runtime.block_on(work(log)));
}

#[test]
fn removed_node_of_other_cluster_grants_nothing() {
    logged(|log| async move {
        let (node, gone) = (lone_node(), lone_node());
        serve_all_slots(&node).await;
        // The removed node is still in the URL.
        let (one, two) = prompt_managers(url(&[&node, &gone]), LEASE).await;
        drop(one.acquire("warm").await.unwrap());
        drop(two.acquire("warm").await.unwrap());
        serve_all_slots(&gone).await;
        let guard = one.acquire("k").await.unwrap();
        node.stop_process();
        let until = Instant::now() + 6 * SECOND;
        // One line of each process, which a busy machine delays.
        let lines = || log.text().matches(LINE).count();
        while Instant::now() < until || (lines() < 2 && Instant::now() < until + PATIENCE) {
            let error = two.acquire("k").wait(SECOND).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
        }
        node.continue_process();
        let error = two.acquire("k").wait(2 * SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(guard.is_held());
        guard.release().await.unwrap();
        two.acquire("k").await.unwrap().release().await.unwrap();
        assert_eq!(gone.cli(&["DBSIZE"]), "0");
        assert_eq!(lines(), 2, "{}", log.text());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_cluster_counts_after_longest_lease() {
    let (mut node, other) = (lone_node(), lone_node());
    serve_all_slots(&node).await;
    let (one, two) = prompt_managers(url(&[&node, &other]), LEASE).await;
    let guard = one.acquire("k").lease(LEASE).await.unwrap();
    let begin = Instant::now();
    serve_all_slots(&other).await;
    node.kill();
    let granted = loop {
        match two.acquire("k").wait(SECOND).await {
            Ok(granted) => break granted,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        }
        assert!(begin.elapsed() < LEASE + 5 * SECOND, "never");
    };
    assert!(!guard.is_held());
    assert!(begin.elapsed() >= LEASE);
    granted.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacement_with_overlap_works_at_once() {
    let (mut node, next) = (lone_node(), lone_node());
    serve_all_slots(&node).await;
    let (idle, _other) = prompt_managers(url(&[&node, &next]), LEASE).await;
    replicate(&node, &next).await;
    let asked = node.calls("cluster|slots");
    // Both processes are idle.
    within(30 * SECOND, "a refresh by each", || {
        node.calls("cluster|slots") >= asked + 2
    })
    .await;
    take_over(&next, &node).await;
    node.kill();
    // By then, the replica is known.
    let guard = idle.acquire("k").await;
    guard.unwrap().release().await.unwrap();
}

/// The links of the process stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_node_redirects_nowhere_else() {
    let (node, other) = (lone_node(), lone_node());
    serve_all_slots(&node).await;
    serve_all_slots(&other).await;
    let (one, _two) = prompt_managers(url(&[&node]), LEASE).await;
    drop(one.acquire("warm").await.unwrap());
    eventually("released", || one.snapshot().is_idle()).await;
    node.cli(&["FLUSHALL"]);
    node.cli(&["CLUSTER", "RESET", "HARD"]);
    meet(&other, &node).await;
    eventually("redirections", || is_ok(&node)).await;
    let error = one.acquire("k").wait(3 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(other.cli(&["DBSIZE"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_address_of_other_cluster_is_left() {
    let (mut node, replica) = (lone_node(), lone_node());
    serve_all_slots(&node).await;
    replicate(&node, &replica).await;
    let id = node.cli(&["CLUSTER", "MYID"]);
    let (one, two) = prompt_managers(url(&[&node, &replica]), LEASE).await;
    let guard = one.acquire("k").await.unwrap();
    eventually("replicated", || {
        replica.cli(&["KEYS", "lock:k"]) == "lock:k"
    })
    .await;
    take_over(&replica, &node).await;
    node.kill();
    // The former primary is reused at its address, before the second process sends a command.
    node.launch_again();
    node.cli(&["CLUSTER", "RESET", "HARD"]);
    serve_all_slots(&node).await;
    let error = two.acquire("k").wait(2 * SECOND).await.unwrap_err();
    assert_ne!(node.cli(&["CLUSTER", "MYID"]), id);
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(node.cli(&["DBSIZE"]), "0");
    assert!(guard.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_of_two_clusters_are_rejected() {
    let (one, other) = (lone_node(), lone_node());
    serve_all_slots(&one).await;
    serve_all_slots(&other).await;
    let backend = RedisBackend::builder(url(&[&one, &other])).connect().await;
    let error = format!("{:?}", backend.unwrap_err());
    assert!(error.contains("SeveralClusters"), "{error}");
}
