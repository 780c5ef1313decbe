//! One primary behind an endpoint.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::support::{Client, NEXT_GRANT, Place, builder};
use crate::support::engine::{MS, SECOND};
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
