//! The counters and events for operators, which contain no secrets.
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::backend::BackendErrorKind;
use tower_lock::{Held, LockLayer, LockManager, LockScope, OnUnavailable, Owner};
use tracing_subscriber::filter::LevelFilter;

use crate::support::broken::broken;
use crate::support::log::Log;

const KEY: &str = "canary-key";

/// Runs two grants, one rejection and one loss.
async fn locks() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(KEY).await.unwrap();
    locks.acquire(KEY).no_wait().await.unwrap_err();
    drop(guard);
    let guard = locks
        .acquire(KEY)
        .lease(Duration::from_secs(1))
        .await
        .unwrap();
    guard.lost().await;
    tokio::time::sleep(Duration::from_millis(5)).await;
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(work);
}

#[test]
fn acquires_and_losses_are_counted_by_outcome() {
    let expected = [
        ("tower_lock_acquires_total", "busy", 1),
        ("tower_lock_acquires_total", "granted", 2),
        ("tower_lock_lost_total", "", 1),
        ("tower_lock_wait_seconds", "", 3),
    ];
    let expected = expected.map(|(name, label, n)| (name.to_owned(), label.to_owned(), n));
    assert_eq!(counted(locks()), expected);
}

/// Runs `work`, and returns the name, the labels, and the value or number of samples of each metric.
fn counted(work: impl Future<Output = ()>) -> Vec<(String, String, u64)> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || logged(work));
    let mut seen = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| label.value().to_owned())
            .collect();
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(samples) => samples.len() as u64,
            DebugValue::Gauge(_) => panic!("no gauges"),
        };
        seen.push((key.key().name().to_owned(), labels.join(","), value));
    }
    seen.sort();
    seen
}

/// Runs `work`, and returns its log.
fn logged(work: impl Future<Output = ()>) -> String {
    let log = Log::default();
    log.record(LevelFilter::TRACE, || run(work));
    log.text()
}

#[test]
fn loss_is_logged_once_without_key() {
    let log = logged(locks());
    assert_eq!(log.matches("lock lost while held").count(), 1, "{log}");
    assert_eq!(log.matches("outcome=\"busy\"").count(), 1, "{log}");
    assert!(!log.contains(KEY), "{log}");
}

/// Requests through this layer, which lets them run without their lock.
async fn unlocked(layer: LockLayer<tower_lock::ByPath>, requests: u32) {
    let service = layer.layer(service_fn(async |_: http::Request<String>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    for _ in 0..requests {
        let request = http::Request::post(format!("/{KEY}")).body(String::new());
        let response = service.clone().oneshot(request.unwrap()).await.unwrap();
        assert!(response.status().is_success());
    }
}

fn down() -> LockLayer<tower_lock::ByPath> {
    LockLayer::by_path(broken(BackendErrorKind::Unavailable))
}

#[test]
fn unlocked_requests_are_counted_by_option() {
    let passing = || down().on_unavailable(OnUnavailable::Pass);
    for (layer, labels) in [
        (passing(), "on_unavailable,unavailable"),
        (down().observe_only(), "observe_only,unavailable"),
    ] {
        let counted = counted(unlocked(layer, 3));
        let expected = ("tower_lock_unlocked_total".to_owned(), labels.to_owned(), 3);
        assert!(counted.contains(&expected), "{counted:?}");
    }
}

#[test]
fn outage_with_unlocked_requests_is_one_warning() {
    let log = logged(unlocked(down().on_unavailable(OnUnavailable::Pass), 3));
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert_eq!(
        log.matches("requests run without their lock").count(),
        1,
        "{log}"
    );
    assert!(!log.contains(KEY), "{log}");
}

#[test]
fn would_be_rejections_are_logged() {
    let log = logged(unlocked(down().observe_only(), 3));
    assert_eq!(log.matches("request would be rejected").count(), 3, "{log}");
    assert!(!log.contains(KEY), "{log}");
}

#[test]
fn extractors_without_layer_are_counted() {
    let outcome = "tower_lock_acquires_total".to_owned();
    let expected = (outcome, "invalid_setup".to_owned(), 3);
    assert!(counted(without_layers()).contains(&expected));
}

async fn without_layers() {
    let app: Router = Router::new()
        .route("/held", get(async |_: Held| ()))
        .route("/owner", get(async |_: Owner| ()))
        .route("/scope", get(async |_: LockScope| ()));
    for path in ["/held", "/owner", "/scope"] {
        let request = http::Request::get(path).body(axum::body::Body::empty());
        let response = app.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let media_type = &response.headers()["content-type"];
        assert_eq!(media_type, "application/problem+json");
    }
}
