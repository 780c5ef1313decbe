//! The events for operators, which contain no secrets, and the metrics of requests without their lock.
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::backend::BackendErrorKind;
use tower_lock::keys::ByPath;
use tower_lock::{
    Held, LockKey, LockLayer, LockManager, LockScope, LockScopeLayer, OnUnavailable, Owner,
};
use tracing_subscriber::filter::LevelFilter;

use crate::scope::support::{LockedId, key};
use crate::served::Stream;
use crate::support::broken::broken;
use crate::support::log::Log;
use crate::support::recorder::Recorder;
use crate::support::simulated::{Fault, Simulated};

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

/// Runs `work`, and returns its log.
fn logged(work: impl Future<Output = ()>) -> String {
    let log = Log::default();
    log.record(LevelFilter::TRACE, || run(work));
    log.text()
}

#[test]
fn loss_is_logged_once_without_key() {
    let log = logged(locks());
    assert_eq!(log.matches("lock lost").count(), 1, "{log}");
    assert_eq!(log.matches("outcome=\"busy\"").count(), 1, "{log}");
    assert!(!log.contains(KEY), "{log}");
}

/// Requests through this layer, which lets them run without their lock.
async fn unlocked(layer: LockLayer<ByPath>, requests: u32) {
    let service = layer.layer(service_fn(async |_: http::Request<String>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    for _ in 0..requests {
        let request = http::Request::post(format!("/{KEY}")).body(String::new());
        let response = service.clone().oneshot(request.unwrap()).await.unwrap();
        assert!(response.status().is_success());
    }
}

fn down() -> LockLayer<ByPath> {
    LockLayer::by_path(broken(BackendErrorKind::Unavailable))
}

#[test]
fn unlocked_requests_are_counted_by_option() {
    let passing = || down().on_unavailable(OnUnavailable::Pass);
    let observing = || down().observe_only();
    let layers: [(&dyn Fn() -> LockLayer<ByPath>, _); 2] = [
        (&passing, r#"option="on_unavailable""#),
        (&observing, r#"option="observe_only""#),
    ];
    for (layer, labels) in layers {
        let recorder = Recorder::new();
        // Built in the paused runtime, the manager lives there, and its last report meets the recorder of this thread.
        recorder.run(|| logged(async { unlocked(layer(), 3).await }));
        let unlocked = format!("tower_lock_unlocked_total{{{labels}}}");
        assert_eq!(recorder.read().count(&unlocked), 3);
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

/// One part of the backend is unavailable, and requests for the others are granted.
#[test]
fn partial_outage_is_one_warning_in_ten_seconds() {
    let log = logged(async {
        let store = Simulated::new(Duration::from_millis(1));
        let locks = LockManager::builder(store.clone()).build().unwrap();
        let layer = LockLayer::by_path(locks).on_unavailable(OnUnavailable::Pass);
        for _ in 0..3 {
            for _ in 0..3 {
                store.down(Some(Fault::Refused));
                unlocked(layer.clone().no_wait(), 1).await;
                store.down(None);
                unlocked(layer.clone(), 1).await;
                // The next request cannot take the lock before its release.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        // The outage begins right after a warning, and goes on.
        store.down(Some(Fault::Refused));
        unlocked(layer.clone().no_wait(), 3).await;
        tokio::time::advance(Duration::from_secs(10)).await;
        unlocked(layer.clone().no_wait(), 3).await;
    });
    assert_eq!(
        log.matches("requests run without their lock").count(),
        4,
        "{log}"
    );
}

#[test]
fn would_be_rejections_are_logged() {
    let log = logged(unlocked(down().observe_only(), 3));
    assert_eq!(log.matches("request would be rejected").count(), 3, "{log}");
    assert!(!log.contains(KEY), "{log}");
}

#[test]
fn extractors_without_layer_are_counted() {
    let recorder = Recorder::new();
    recorder.run(|| logged(without_layers()));
    let rejected = r#"tower_lock_acquires_total{outcome="misconfigured"}"#;
    assert_eq!(recorder.read().count(rejected), 3);
}

async fn without_layers() {
    let app: Router = Router::new()
        .route("/held", get(async |_: Held| ()))
        .route("/owner", get(async |_: Owner| ()))
        .route("/scope", get(async |_: LockScope| ()));
    for path in ["/held", "/owner", "/scope"] {
        let request = http::Request::get(path).body(Body::empty());
        let response = app.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let media_type = &response.headers()["content-type"];
        assert_eq!(media_type, "application/problem+json");
    }
}

/// The wait ends with the error of the body, in place of a cancellation.
#[test]
fn failed_body_is_outcome_of_wait() {
    let recorder = Recorder::new();
    let log = recorder.run(|| {
        logged(async {
            let locks = LockManager::in_memory();
            let path = format!("/{KEY}");
            let keys = [LockKey::from_path(&path), key(KEY)];
            let _guard = locks.acquire(keys).await.unwrap();
            let layered = Router::new()
                .route("/{id}", post(async || ()))
                .layer(LockLayer::by_path(locks.clone()));
            let scoped = Router::new()
                .route("/{id}", post(async |_: LockedId, _: Body| ()))
                .layer(LockScopeLayer::new())
                .with_state(locks);
            for app in [layered, scoped] {
                let (body, frames) = Stream::new();
                frames.fail();
                let request = http::Request::post(&path).body(Body::new(body)).unwrap();
                let response = app.oneshot(request).await.unwrap();
                assert_eq!(response.status(), http::StatusCode::BAD_REQUEST);
            }
        })
    });
    let seen = recorder.read();
    let count = |outcome: &str| {
        seen.count(&format!(
            "tower_lock_acquires_total{{outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!((count("body_failed"), count("cancelled")), (2, 0));
    assert_eq!(log.matches("outcome=\"body_failed\"").count(), 2, "{log}");
    assert!(!log.contains(KEY), "{log}");
}
