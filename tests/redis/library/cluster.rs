//! The cluster client of redis-rs. If a test fails, the library may be used: see "cluster routing" in
//! ARCHITECTURE.md.

use std::time::Duration;

use futures_util::future::join_all;
use redis::cluster::{ClusterClientBuilder, NodeAddress};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::support::cluster::Cluster;
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

/// Clients of the primaries, with no limit on all attempts of a command together.
pub(super) fn builder(cluster: &Cluster) -> ClusterClientBuilder {
    let primaries = cluster.nodes()[..3].iter().map(RedisServer::url);
    let builder = ClusterClientBuilder::new(primaries).response_timeout(10 * SECOND);
    builder.overall_response_timeout(None)
}

pub(super) async fn connect(builder: ClusterClientBuilder) -> ClusterConnection {
    builder
        .build()
        .unwrap()
        .get_async_connection()
        .await
        .unwrap()
}

/// Clients that connect to a node through its proxy.
fn builder_through(proxy: &Proxy, cluster: &Cluster, node: usize) -> ClusterClientBuilder {
    let ports = [cluster.node(node).port(), proxy.port()];
    let [node, way] = ports.map(|port| NodeAddress::new("127.0.0.1", port));
    builder(cluster).node_address_map([(node, way)].into())
}

/// Returns a key of the node.
pub(super) fn key_at(cluster: &Cluster, node: usize) -> String {
    let mut keys = (0..).map(|n| format!("k{n}"));
    keys.find(|key| cluster.node_of(key) == node).unwrap()
}

fn get(key: &str) -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(key);
    get
}

/// Sends the command to a node that may not have its key.
async fn send_to(client: &mut ClusterConnection, port: u16, command: Cmd) -> RedisResult<Value> {
    let host = "127.0.0.1".to_owned();
    let node = SingleNodeRoutingInfo::ByAddress { host, port };
    client
        .route_command(command, RoutingInfo::SingleNode(node))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_node_delays_refresh_and_all_keys() {
    let cluster = Cluster::start_with(&["--cluster-node-timeout", "60000"]);
    let mut client = connect(builder(&cluster).response_timeout(SECOND)).await;
    let [own, other] = [1, 2].map(|node| key_at(&cluster, node));
    cluster.stop_process(0);
    // A redirection starts the refresh.
    let refresh = tokio::spawn({
        let (mut client, port, read) = (client.clone(), cluster.node(1).port(), get(&other));
        async move { send_to(&mut client, port, read).await }
    });
    let mut longest = Duration::ZERO;
    while !refresh.is_finished() {
        let start = Instant::now();
        get(&own).exec_async(&mut client).await.unwrap();
        longest = longest.max(start.elapsed());
    }
    refresh.await.unwrap().unwrap();
    assert!(longest > SECOND / 2, "{longest:?}");
    cluster.continue_process(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_is_used_up_by_other_commands() {
    let cluster = Cluster::start();
    let proxy = Proxy::start(cluster.node(1).port()).await;
    let client = connect(builder_through(&proxy, &cluster, 1)).await;
    let key = key_at(&cluster, 0);
    cluster.begin_migration(cluster.slot(&key), 0, 1);
    // All of them arrive before the first reply.
    proxy.delay(50 * MS);
    let reads = (0..3).map(|n| {
        let (mut client, read) = (client.clone(), get(&format!("{{{key}}}{n}")));
        async move { read.exec_async(&mut client).await }
    });
    drop(join_all(reads).await);
    // The importing node redirects only commands without the flag.
    let errors = cluster.cli(1, &["INFO", "errorstats"]);
    assert!(errors.contains("errorstat_MOVED:"), "{errors}");
}

/// `retries` counts both: with 0, no command is sent twice, and no redirection is followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reply_is_resent_without_notice() {
    let cluster = Cluster::start();
    let proxy = Proxy::start(cluster.node(0).port()).await;
    let builder = || builder_through(&proxy, &cluster, 0);
    let key = key_at(&cluster, 0);
    let mut increment = redis::cmd("INCR");
    increment.arg(&key);

    let mut client = connect(builder()).await;
    proxy.truncate_answers(0);
    let count: i64 = increment.query_async(&mut client).await.unwrap();
    assert_eq!(count, 2);

    let mut client = connect(builder().retries(0)).await;
    let error = send_to(&mut client, cluster.node(1).port(), get(&key))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server(ServerErrorKind::Moved));

    // A command without a reply in time is sent again when another command wakes the client.
    let timeout = 200 * MS;
    let client = connect(builder().retries(1).response_timeout(timeout)).await;
    proxy.delay(timeout);
    let (mut reader, mut client, read) = (client.clone(), client, get(&key_at(&cluster, 1)));
    let reads = async {
        loop {
            read.exec_async(&mut reader).await.unwrap();
        }
    };
    tokio::select! {
        outcome = increment.exec_async(&mut client) => assert!(outcome.unwrap_err().is_timeout()),
        () = reads => {}
    }
    eventually("both are executed", || {
        cluster.cli(0, &["GET", &key]) == "4"
    })
    .await;
}
