//! One primary behind an endpoint.

use std::future::IntoFuture as _;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::support::{Client, LEASE, NEXT_GRANT, Place, builder};
use crate::support::engine::{MS, SECOND, eventually, manager_from};
use crate::support::service::Service;

/// The most connections to an address within this time, while it leads to a wrong server.
const MOST: (usize, Duration) = (10, Duration::from_secs(3));

/// The endpoint leads to the new primary with its promotion.
async fn follows_at_once(place: Place) {
    let service = Service::start().await;
    let client = Client::connect(place, builder(&service, place).await).await;
    service.promote().await;
    service.lead_to_new();
    client.is_served(Instant::now() + NEXT_GRANT).await;
    client.keeps_lock().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_endpoint_of_url_is_followed() {
    follows_at_once(Place::Url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_endpoint_without_resp3_is_followed() {
    follows_at_once(Place::Resp2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_endpoint_of_replicas_is_followed() {
    follows_at_once(Place::UrlWithReplicas).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_endpoint_of_given_pool_is_followed() {
    follows_at_once(Place::Pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_endpoint_of_pool_with_replicas_is_followed() {
    follows_at_once(Place::PoolWithReplicas).await;
}

/// A load balancer leads to the former primary for another 3 s.
async fn follows_late(place: Place) {
    let service = Service::start().await;
    let client = Client::connect(place, builder(&service, place).await).await;
    service.promote().await;
    let start = Instant::now();
    let leads_late = async {
        sleep(3 * SECOND).await;
        let (most, window) = MOST;
        let accepted = service.vip.most_accepted(start, window);
        assert!((2..=most).contains(&accepted), "{accepted} connections");
        service.lead_to_new();
    };
    let deadline = start + 3 * SECOND + NEXT_GRANT;
    tokio::join!(client.is_served(deadline), leads_late);
    client.keeps_lock().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_endpoint_of_url_gets_few_connections() {
    follows_late(Place::Url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_endpoint_of_replicas_gets_few_connections() {
    follows_late(Place::UrlWithReplicas).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_endpoint_of_given_pool_gets_few_connections() {
    follows_late(Place::Pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_endpoint_of_pool_with_replicas_is_spared() {
    follows_late(Place::PoolWithReplicas).await;
}

/// The former primary hangs, and with it the connections that it has.
async fn follows_without_former(place: Place) {
    let service = Service::start().await;
    let client = Client::connect(place, builder(&service, place).await).await;
    service.promote_without_former().await;
    service.lead_to_new();
    // The reply times out, and for a pool also the check of one idle connection.
    client
        .is_served(Instant::now() + NEXT_GRANT + 3 * SECOND)
        .await;
    client.keeps_lock().await;
    service.servers[0].continue_process();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_primary_of_url_is_left() {
    follows_without_former(Place::Url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_primary_of_replicas_is_left() {
    follows_without_former(Place::UrlWithReplicas).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_primary_of_given_pool_is_left() {
    follows_without_former(Place::Pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_primary_of_pool_with_replicas_is_left() {
    follows_without_former(Place::PoolWithReplicas).await;
}

/// A failover pauses the writes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_writes_before_failover_end_at_new_primary() {
    let follows = async |place| {
        let service = Service::start().await;
        let client = Client::connect(place, builder(&service, place).await).await;
        service.servers[0].cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
        let deadline = Instant::now() + 5 * SECOND + NEXT_GRANT;
        let fails_over = async {
            sleep(700 * MS).await;
            service.promote().await;
            service.lead_to_new();
            service.servers[0].cli(&["CLIENT", "UNPAUSE"]);
        };
        tokio::join!(client.is_served(deadline), fails_over);
        client.keeps_lock().await;
    };
    tokio::join!(follows(Place::Url), follows(Place::UrlWithReplicas));
}

/// The server ends each `WAIT` when it becomes a replica. The connections that replace theirs are opened one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_demoted_during_waits_gets_few_connections() {
    let service = Service::start().await;
    let first = &service.servers[0];
    let builder = builder(&service, Place::UrlWithReplicas).await;
    let locks = manager_from(builder, LEASE).await;
    for replica in &service.servers[1..] {
        replica.stop_process();
    }
    let acquires = (0..20).map(|n| locks.acquire(n.to_string()).wait(5 * SECOND).into_future());
    let demotion = async {
        let is_blocked = |client: &&String| client.contains("cmd=wait");
        eventually("all wait", || {
            first.clients("normal").iter().filter(is_blocked).count() == 20
        })
        .await;
        let start = Instant::now();
        first.cli(&[
            "REPLICAOF",
            "127.0.0.1",
            &service.servers[1].port().to_string(),
        ]);
        let (most, window) = MOST;
        sleep(window).await;
        let accepted = service.vip.most_accepted(start, window);
        assert!((2..=most).contains(&accepted), "{accepted} connections");
    };
    let (outcomes, ()) = tokio::join!(join_all(acquires), demotion);
    assert!(outcomes.iter().all(Result::is_err));
}
