//! A cluster with one name for all servers of a shard.

use futures_util::future::join_all;
use tokio::time::Instant;
use tower_lock::RedisBackend;

use super::support::{Client, NEXT_GRANT, acknowledged};
use crate::support::engine::SECOND;
use crate::support::service::Service;

async fn clients(service: &Service) -> [Client; 2] {
    let by_url = || RedisBackend::builder(service.url());
    [
        Client::connect("alone", by_url()).await,
        Client::connect("replicas", acknowledged(by_url())).await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_to_same_address_serves_and_keeps_locks() {
    let service = Service::start_shard().await;
    let clients = clients(&service).await;
    service.promote().await;
    let deadline = Instant::now() + NEXT_GRANT;
    for client in &clients {
        client.is_served(deadline).await;
    }
    // No map of the slots comes from the former primary either.
    let scripts = || service.servers[0].calls("evalsha");
    let maps = || service.servers[0].calls("cluster|slots");
    let before = (scripts(), maps());
    join_all(clients.map(Client::keeps_lock)).await;
    assert_eq!((scripts(), maps()), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_node_with_same_address_is_left() {
    let service = Service::start_shard().await;
    let clients = clients(&service).await;
    service.promote_without_former().await;
    let deadline = Instant::now() + NEXT_GRANT + 3 * SECOND;
    for client in &clients {
        client.is_served(deadline).await;
    }
    join_all(clients.map(Client::keeps_lock)).await;
}
