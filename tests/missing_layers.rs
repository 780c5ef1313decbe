//! The log of extractors without their layer.
//!
//! It is a program of its own: each extractor logs once per process.
#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use axum::Router;
use axum::routing::get;
use support::log::Log;
use tower::ServiceExt as _;
use tower_lock::{Held, LockScope, Owner};
use tracing_subscriber::filter::LevelFilter;

#[test]
fn extractors_without_layer_log_remedy_once() {
    let app: Router = Router::new()
        .route("/held", get(async |_: Held| ()))
        .route("/owner", get(async |_: Owner| ()))
        .route("/scope", get(async |_: LockScope| ()));
    let requests = async {
        for path in ["/held", "/owner", "/scope"].repeat(3) {
            let request = http::Request::get(path).body(axum::body::Body::empty());
            let response = app.clone().oneshot(request.unwrap()).await.unwrap();
            assert_eq!(response.status(), 500);
        }
    };
    let log = Log::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    log.record(LevelFilter::TRACE, || runtime.block_on(requests));
    let log = log.text();
    for remedy in [
        "no lock is held for this request",
        "or a `Locked` before `Owner`",
        "add a `LockScopeLayer`",
    ] {
        assert_eq!(log.matches(remedy).count(), 1, "{log}");
    }
}
