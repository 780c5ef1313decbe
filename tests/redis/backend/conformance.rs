//! The contract of a backend on one server: over each kind of connection, and in a quorum.

use std::num::NonZeroUsize;
use std::time::Duration;

use deadpool_redis::{Config, Pool, Runtime};
use tower_lock::backend::conformance;
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{Quorum, RedisBackend};

use crate::backend::contract::passes_conformance;
use crate::support::redis_server::RedisServer;

async fn holds(handle: impl Fn() -> RedisBackendBuilder) {
    // A busy machine must not cause timeouts.
    let patient = || handle().response_timeout(Duration::from_secs(10));
    let one = patient().connect().await.unwrap();
    let other = patient().connect().await.unwrap();
    passes_conformance(&one, &other).await;
    conformance::all_of_node(&one, &other).await;
}

fn pool(server: &RedisServer) -> Pool {
    let config = Config::from_url(server.url());
    config.create_pool(Some(Runtime::Tokio1)).unwrap()
}

#[tokio::test]
async fn redis_over_tcp_passes_conformance() {
    let server = RedisServer::start();
    holds(|| RedisBackend::builder(server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_over_connections_passes_conformance() {
    let server = RedisServer::start();
    let three = NonZeroUsize::new(3).unwrap();
    holds(|| RedisBackend::builder(server.url()).connections(three)).await;
}

#[tokio::test]
async fn redis_over_unix_socket_passes_conformance() {
    let server = RedisServer::start();
    holds(|| RedisBackend::builder(server.unix_url())).await;
}

#[tokio::test]
async fn redis_without_prefix_passes_conformance() {
    let server = RedisServer::start();
    holds(|| RedisBackend::builder(server.url()).prefix("")).await;
}

#[tokio::test]
async fn pool_with_notifications_passes_conformance() {
    let server = RedisServer::start();
    holds(|| RedisBackend::from_pool(pool(&server)).notify(server.url())).await;
}

#[tokio::test]
async fn pool_without_notifications_passes_conformance() {
    let server = RedisServer::start();
    holds(|| RedisBackend::from_pool(pool(&server))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_of_redis_servers_passes_conformance() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let ten_seconds = Duration::from_secs(10);
    let quorum = || async {
        let mut quorum = Quorum::builder().node_timeout(ten_seconds);
        for server in &servers {
            let node = RedisBackend::builder(server.url()).response_timeout(ten_seconds);
            quorum = quorum.node(node.connect().await.unwrap());
        }
        quorum.build().unwrap()
    };
    conformance::all(&quorum().await, &quorum().await).await;
}
