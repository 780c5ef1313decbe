//! Settings that bound the wait, requests that are skipped, and values that construction rejects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Request, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::keys::KeyExtractor;
use tower_lock::{LockKey, LockLayer, LockManager};

use super::support::{show_held, text};
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

#[tokio::test]
async fn name_is_no_part_of_key() {
    let locks = LockManager::in_memory();
    let named = locks.acquire(path_key("/a")).name("jobs");
    let guard = named.await.unwrap();
    let layer = LockLayer::by_path(locks).no_wait();
    for layer in [layer.clone(), layer.clone().name("jobs"), layer.name("web")] {
        let service = layer.layer(service_fn(show_held));
        let response = service.oneshot(post("/a")).await.unwrap();
        assert_eq!(response.status(), StatusCode::CONFLICT);
    }
    drop(guard);
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

/// Sends a request through the layer, to a handler that shows what it holds.
async fn shown<K: KeyExtractor>(layer: &LockLayer<K>, method: &str, path: &str) -> String {
    let request = Request::builder().method(method).uri(path);
    let service = layer.layer(service_fn(show_held));
    let response = service.oneshot(request.body(String::new()).unwrap());
    text(response.await.unwrap()).await
}

#[tokio::test]
async fn skip_runs_before_key_extraction() {
    let extracted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&extracted);
    let by = move |_: &Parts| {
        count.fetch_add(1, Ordering::Relaxed);
        LockKey::new("all")
    };
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_fn(locks.clone(), by).skip(|request| request.uri.path() == "/health");
    assert_eq!(shown(&layer, "POST", "/health").await, "unlocked");
    assert_eq!(extracted.load(Ordering::Relaxed), 0);
    assert!(locks.snapshot().is_idle());
    assert_eq!(shown(&layer, "POST", "/orders").await, "all");
    assert_eq!(extracted.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn later_skip_replaces_earlier_one() {
    let layer = LockLayer::by_fn(LockManager::in_memory(), |_| LockKey::new("all"))
        .skip(|request| request.uri.path() == "/first")
        .skip(|request| request.uri.path() == "/second");
    assert_eq!(shown(&layer, "POST", "/first").await, "all");
    assert_eq!(shown(&layer, "POST", "/second").await, "unlocked");
}

#[tokio::test]
async fn skip_adds_to_safe_methods() {
    let layer = LockLayer::by_fn(LockManager::in_memory(), |_| LockKey::new("all"))
        .skip(|request| request.uri.path() == "/health");
    for (method, path, held) in [
        ("GET", "/orders", "unlocked"),
        ("POST", "/health", "unlocked"),
        ("POST", "/orders", "all"),
    ] {
        assert_eq!(shown(&layer, method, path).await, held, "{method} {path}");
    }
}
