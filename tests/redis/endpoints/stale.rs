//! What remains of the connections to a former primary.

use tokio::time::sleep;
use tower_lock::RedisBackend;
use tower_lock::backend::redis::RedisBackendBuilder;

use super::support::{LEASE, Place, builder, pool};
use crate::support::engine::{
    MS, SECOND, manager_from, prompt_manager, prompt_managers, subscribers, within,
};
use crate::support::service::Service;

/// The former primary is a replica without a primary, and has the data from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_reply_of_former_primary_is_not_used() {
    let service = Service::start().await;
    let holder = prompt_manager(service.servers[0].url(), LEASE).await;
    let (first, second) = prompt_managers(service.url(), LEASE).await;
    let held = holder.acquire("k").await.unwrap();
    service.promote().await;
    service.servers[0].cli(&["REPLICAOF", "127.0.0.1", "1"]);
    service.lead_to_new();
    service.servers[1].cli(&["DEL", "lock:k"]);
    assert_eq!(service.servers[0].cli(&["EXISTS", "lock:k"]), "1");
    let before = service.servers[0].calls("hello");
    drop(first.acquire("another").await.unwrap());
    let guard = second.acquire("k").no_wait().await.unwrap();
    // The dial of the first and the check of the second.
    assert_eq!(service.servers[0].calls("hello") - before, 1);
    guard.release().await.unwrap();
    drop(held);
}

/// The server does not count the subscribers of its replicas.
async fn subscription_follows(builder: impl AsyncFn(&Service) -> RedisBackendBuilder) {
    let service = Service::start().await;
    let locks = manager_from(builder(&service).await, LEASE).await;
    let other = manager_from(builder(&service).await, LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    let waiting = tokio::spawn(other.acquire("k").wait_forever().into_future());
    let count = |server: usize| subscribers(&service.servers[server], "k");
    within(SECOND, "subscribed", || count(0) == 1).await;
    service.promote().await;
    service.lead_to_new();
    within(5 * SECOND, "follows", || count(1) == 1).await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_follows_moved_endpoint() {
    subscription_follows(async |service| RedisBackend::builder(service.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_beside_given_pool_follows_endpoint() {
    subscription_follows(async |service| {
        let builder = RedisBackend::from_pool(pool(service).await);
        builder.notify(service.url())
    })
    .await;
}

/// The connections in use stay with the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_idle_connections_leave_given_pool() {
    let service = Service::start().await;
    let pool = pool(&service).await;
    let mut used = pool.get().await.unwrap();
    let builder = RedisBackend::from_pool(pool.clone());
    let locks = manager_from(builder, LEASE).await;
    service.promote().await;
    service.lead_to_new();
    let mut before = pool.status().available;
    assert!(before > 60, "{before} idle");
    drop(locks.acquire("k").no_wait().await.unwrap());
    before = pool.status().available;
    assert_eq!(before, 0, "idle ones left");
    let pong: String = redis::cmd("PING").query_async(&mut used).await.unwrap();
    assert_eq!(pong, "PONG");
    drop(used);
    assert_eq!(pool.status().available, 1);
}

/// No connection stays at the former primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_former_primary_are_closed() {
    let service = Service::start().await;
    let settings = builder(&service, Place::UrlWithReplicas).await;
    let locks = manager_from(settings, LEASE).await;
    let all = (0..100).map(|n| locks.acquire(format!("{n}")).into_future());
    let guards = futures_util::future::join_all(all).await;
    drop(guards);
    sleep(500 * MS).await;
    assert!(service.servers[0].clients("normal").len() > 2);
    service.promote().await;
    service.lead_to_new();
    drop(locks.acquire("k").await.unwrap());
    let is_left = || service.servers[0].clients("normal").is_empty();
    within(2 * SECOND, "closed", is_left).await;
}
