//! CORS, panics, timeouts and limits around the lock.

use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use http::{Method, Request, StatusCode};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;
use tower_lock::{LockKey, LockLayer, LockManager, LockScopeLayer, Locked};

use super::support::{request, send, serve, status};
use crate::served::{assert_waits, path_key, until};

#[tokio::test]
async fn preflight_does_not_wait_for_lock() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    let preflight = || {
        let request = Request::options("/a")
            .header("origin", "https://example.org")
            .header("access-control-request-method", "POST");
        request.body(Body::empty()).unwrap()
    };
    // CORS is outside the lock.
    let app: Router = Router::new()
        .route("/a", post(async || ()))
        .route_layer(LockLayer::by_path(locks.clone()).no_wait())
        .layer(CorsLayer::permissive());
    let response = app.oneshot(preflight()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    // The app's own OPTIONS handler is inside the lock, which passes safe methods.
    let app: Router = Router::new()
        .route("/a", post(async || ()).options(async || ()))
        .route_layer(LockLayer::by_path(locks).no_wait());
    let response = app.clone().oneshot(preflight()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(status(&app, Method::POST, "/a").await, StatusCode::CONFLICT);
}

async fn panics() -> &'static str {
    tokio::task::yield_now().await;
    panic!("on purpose");
}

#[tokio::test]
async fn panic_caught_outside_lock_releases_lock() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route("/", get(panics))
        .route_layer(LockLayer::by_path(locks.clone()).all_methods())
        .layer(CatchPanicLayer::new());
    let answered = status(&app, Method::GET, "/").await;
    assert_eq!(answered, StatusCode::INTERNAL_SERVER_ERROR);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn panic_caught_inside_lock_releases_lock() {
    let locks = LockManager::in_memory();
    let layers = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()).all_methods())
        .layer(CatchPanicLayer::new());
    let app: Router = Router::new().route("/", get(panics)).route_layer(layers);
    let answered = status(&app, Method::GET, "/").await;
    assert_eq!(answered, StatusCode::INTERNAL_SERVER_ERROR);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn uncaught_panic_releases_lock() {
    let locks = LockManager::in_memory();
    let app = Router::new()
        .route("/", get(panics))
        .route_layer(LockLayer::by_path(locks.clone()).all_methods());
    let mut client = send(serve(app).await, "GET / HTTP/1.1").await;
    let mut nothing = Vec::new();
    drop(client.read_to_end(&mut nothing).await);
    assert!(nothing.is_empty());
    until(|| locks.snapshot().is_idle()).await;
}

fn timeout(millis: u64) -> TimeoutLayer {
    let millis = Duration::from_millis(millis);
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, millis)
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_lock_ends_handler_and_releases() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route("/", get(async || pending::<()>().await))
        .route_layer(LockLayer::by_path(locks.clone()).all_methods())
        .layer(timeout(1_000));
    assert_eq!(
        status(&app, Method::GET, "/").await,
        StatusCode::GATEWAY_TIMEOUT
    );
    until(|| locks.snapshot().is_idle()).await;
}

/// The table of `LockLayer::wait`, and what `LockScopeLayer::wait` says of a timeout inside.
#[tokio::test(start_paused = true)]
async fn timeouts_around_wait_are_as_documented() {
    type Around<'a> = &'a dyn Fn(LockManager, MethodRouter<LockManager>, u64) -> Router;
    let outside = |locks: LockManager, route: MethodRouter<LockManager>, seconds: u64| -> Router {
        let layer = LockLayer::by_path(locks.clone());
        let router = Router::new().route("/", route.layer(layer));
        router.layer(timeout(seconds * 1_000)).with_state(locks)
    };
    let inside = |locks: LockManager, route: MethodRouter<LockManager>, seconds: u64| -> Router {
        let layers = ServiceBuilder::new()
            .layer(LockLayer::by_path(locks.clone()))
            .layer(timeout(seconds * 1_000));
        let router = Router::new().route("/", route.layer(layers));
        router.with_state(locks)
    };
    let in_scope = |locks: LockManager, route: MethodRouter<LockManager>, seconds: u64| -> Router {
        let layers = ServiceBuilder::new()
            .layer(LockScopeLayer::new())
            .layer(timeout(seconds * 1_000))
            .layer(Extension(path_key("/")));
        let router = Router::new().route("/", route.layer(layers));
        router.with_state(locks)
    };
    // The status and its second if the key is busy for a minute, and then for 4 s. The handler of the latter never ends.
    for (name, around, seconds, busy, late, had) in [
        ("outside", &outside as Around<'_>, 3, (504, 3), 3, None),
        ("outside", &outside, 10, (409, 5), 10, Some(6)),
        ("inside", &inside, 10, (409, 5), 14, Some(10)),
        ("in scope", &in_scope, 3, (504, 3), 3, None),
        ("in scope", &in_scope, 10, (409, 5), 10, Some(6)),
    ] {
        for (hold, (expected, after), had) in [(60, busy, None), (4, (504, late), had)] {
            let locks = LockManager::in_memory();
            let guard = locks.acquire(path_key("/")).await.unwrap();
            let release = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(hold)).await;
                drop(guard);
            });
            let begun = Arc::new(OnceLock::new());
            let begins = Arc::clone(&begun);
            let work = async move || {
                begins.set(Instant::now()).unwrap();
                pending::<()>().await;
            };
            let route = if name == "in scope" {
                post(async move |_: Locked<Extension<LockKey>>| work().await)
            } else {
                post(work)
            };
            let start = Instant::now();
            let idle = locks.clone();
            let app = around(locks, route, seconds);
            let response = app.oneshot(request(Method::POST, "/")).await.unwrap();
            let at = format!("{name} {seconds} {hold}");
            assert_eq!(response.status().as_u16(), expected, "{at}");
            assert_eq!(start.elapsed().as_secs(), after, "{at}");
            let is_retried = response.headers().contains_key("retry-after");
            assert_eq!(is_retried, expected == 409, "{at}");
            let begun = begun.get().map(|begun: &Instant| begun.elapsed().as_secs());
            assert_eq!(begun, had, "{at}");
            assert_eq!(idle.snapshot().waiting, 0, "{at}");
            release.abort();
            until(|| idle.snapshot().is_idle()).await;
        }
    }
}

#[tokio::test]
async fn ready_service_is_called() {
    // A concurrency limit panics if it is called before it was ready.
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/")).await.unwrap();
    let layers = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()).all_methods())
        .layer(ConcurrencyLimitLayer::new(2));
    let app: Router = Router::new().route("/", get(async || ()).layer(layers));
    let mut first = Box::pin(status(&app, Method::GET, "/"));
    let mut second = Box::pin(status(&app, Method::GET, "/"));
    assert_waits(&mut first).await;
    assert_waits(&mut second).await;
    drop(guard);
    let answered = tokio::join!(first, second);
    assert_eq!(answered, (StatusCode::OK, StatusCode::OK));
}
