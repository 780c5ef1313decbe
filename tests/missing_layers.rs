//! The log of extractors without their layer, and of an acquire without its await.
//!
//! It is a program of its own: each logs once per process.
#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use axum::routing::{get, put};
use axum::{Extension, Router};
use support::log::Log;
use support::patience::PATIENCE;
use tower::ServiceExt as _;
use tower_lock::{Held, LockKey, LockLayer, LockManager, LockScope, Locked, Owner};
use tracing_subscriber::filter::LevelFilter;

#[test]
fn extractors_without_layer_log_remedy_once() {
    async fn locked(_: Locked<Extension<LockKey>>) {}
    let app: Router = Router::new()
        .route("/held", get(async |_: Held| ()))
        .route("/held/{id}", get(async |_: Held| ()))
        .route("/owner", get(async |_: Owner| ()))
        .route("/scope", get(async |_: LockScope| ()))
        .route("/locked", get(locked))
        .route("/locked/{id}", get(locked))
        .fallback(async |_: Held| ())
        .with_state(LockManager::in_memory());
    let paths = [
        "/held",
        "/held/7",
        "/owner",
        "/scope",
        "/locked",
        "/locked/7",
        "/none",
    ];
    let requests = async {
        for path in paths.repeat(3) {
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
    for (extractor, route, remedy) in [
        ("Held", Some("/held"), "no lock is held for this request"),
        (
            "Held",
            Some("/held/{id}"),
            "no lock is held for this request",
        ),
        ("Held", None, "no lock is held for this request"),
        ("Owner", Some("/owner"), "or a `Locked` before `Owner`"),
        ("LockScope", Some("/scope"), "add a `LockScopeLayer`"),
        ("Locked", Some("/locked"), "add a `LockScopeLayer`"),
        ("Locked", Some("/locked/{id}"), "add a `LockScopeLayer`"),
    ] {
        let extractor = format!("misconfigured extractor=\"{extractor}\" ");
        let route = route.map_or("problem=".to_owned(), |route| format!("route=\"{route}\" "));
        let of_route = format!("{extractor}{route}");
        let mut lines = log.lines().filter(|line| line.contains(&of_route));
        let line = lines.next().unwrap_or_default();
        assert!(line.contains(remedy), "{of_route}: {log}");
        assert_eq!(lines.next(), None, "{of_route}: {log}");
    }
    assert_eq!(
        log.matches("lock layer misconfigured").count(),
        paths.len(),
        "{log}"
    );
}

#[test]
fn acquire_without_await_warns_once() {
    let locks = LockManager::in_memory();
    let awaited = async {
        let acquire = locks.acquire("k").no_wait();
        for _ in 0..2 {
            drop(acquire.clone().await.unwrap());
        }
        // A future that is not polled is a choice of the program, such as `select!`.
        drop(locks.acquire("k").into_future());
        // A request that ends while its body is read.
        let lock = LockLayer::by_path(locks.clone()).read_body_first(1, PATIENCE);
        let app: Router = Router::new().route("/", put(async || ())).layer(lock);
        let body = axum::body::Body::from("too large");
        let request = http::Request::put("/").body(body).unwrap();
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 413);
    };
    let log = Log::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    log.record(LevelFilter::WARN, || runtime.block_on(awaited));
    assert_eq!(log.text(), "");
    log.record(LevelFilter::WARN, || {
        for _ in 0..3 {
            let _guard = locks.acquire("k");
        }
    });
    let warning = " WARN lock request dropped without an await\n";
    assert_eq!(log.text(), warning);
}
