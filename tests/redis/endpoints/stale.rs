//! What remains of the connections to a former primary.

use tokio::time::sleep;

use super::support::{LEASE, Place, Service};
use crate::support::engine::{MS, SECOND, manager, manager_from, managers, subscribers, within};

/// The former primary is a replica without a primary, and has the data from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_reply_of_former_primary_is_not_used() {
    let service = Service::start().await;
    let holder = manager(service.servers[0].url(), LEASE).await;
    let (first, second) = managers(service.url(), LEASE).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_follows_moved_endpoint() {
    let service = Service::start().await;
    let (locks, other) = managers(service.url(), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    let waiting = tokio::spawn(other.acquire("k").wait_forever().into_future());
    within(SECOND, "subscribed", || {
        subscribers(&service.servers[0], "k") == 1
    })
    .await;
    service.promote().await;
    service.lead_to_new();
    within(5 * SECOND, "follows", || {
        subscribers(&service.servers[1], "k") == 1
    })
    .await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// The connections in use stay with the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_idle_connections_leave_given_pool() {
    let service = Service::start().await;
    let pool = service.pool().await;
    let mut used = pool.get().await.unwrap();
    let builder = tower_lock::RedisBackend::from_pool(pool.clone());
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
    let builder = service.builder(Place::UrlWithReplicas).await;
    let locks = manager_from(builder, LEASE).await;
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
