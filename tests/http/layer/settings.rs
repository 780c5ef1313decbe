//! Settings that bound the wait, and values that construction rejects.

use std::time::Duration;

use http::{HeaderName, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{LockLayer, LockManager};

use super::support::show_held;
use crate::served::{path_key, post};

#[tokio::test(start_paused = true)]
async fn wait_setting_bounds_wait() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    for (layer, millis) in [
        (LockLayer::by_path(locks.clone()), 5_000),
        (
            LockLayer::by_path(locks.clone()).wait(Duration::from_millis(100)),
            100,
        ),
        (LockLayer::by_path(locks.clone()).no_wait(), 0),
    ] {
        let start = tokio::time::Instant::now();
        let response = layer
            .layer(service_fn(show_held))
            .oneshot(post("/a"))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        let waited = start.elapsed();
        let expected = Duration::from_millis(millis);
        let slack = Duration::from_millis(10);
        assert!(
            waited >= expected && waited <= expected + slack,
            "{waited:?}, not {expected:?}"
        );
    }
}

#[test]
#[should_panic(expected = "invalid `lease`")]
fn zero_lease_is_rejected_at_construction() {
    let _layer = LockLayer::by_path(LockManager::in_memory()).lease(Duration::ZERO);
}

#[test]
#[should_panic(expected = "invalid `wait`")]
fn endless_wait_is_rejected_at_construction() {
    let _layer = LockLayer::by_path(LockManager::in_memory()).wait(Duration::MAX);
}

#[test]
#[should_panic(expected = "invalid `max_hold`")]
fn zero_max_hold_is_rejected_at_construction() {
    let _layer = LockLayer::by_path(LockManager::in_memory()).max_hold(Duration::ZERO);
}

#[test]
#[should_panic(expected = "invalid `status`")]
fn server_error_status_is_rejected_at_construction() {
    let _layer =
        LockLayer::by_path(LockManager::in_memory()).status(StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
#[should_panic(expected = "`LockLayer`: invalid `by_header`")]
fn invalid_header_name_is_rejected_at_construction() {
    let _layer = LockLayer::by_header(LockManager::in_memory(), "no name");
}

#[test]
fn header_name_constant_is_accepted() {
    let _layer = LockLayer::by_header(LockManager::in_memory(), http::header::IF_MATCH);
    let _layer = LockLayer::by_header(LockManager::in_memory(), HeaderName::from_static("x-id"));
}
