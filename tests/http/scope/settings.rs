//! The settings of a scope apply to `Locked` in it.

use std::future::pending;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::StatusCode;
use tower::ServiceExt;
use tower_lock::{ErrorKind, LockKey, LockLayer, LockManager, LockScopeLayer};

use super::support::{LockedId, key, kind, request, status, text};
use crate::served::in_time;

#[tokio::test(start_paused = true)]
async fn max_hold_in_scope_aborts_handler() {
    let locks = LockManager::in_memory();
    let handler = async |_locked: LockedId| pending::<()>().await;
    let limit = LockScopeLayer::new().max_hold(Duration::from_secs(60));
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(limit)
        .with_state(locks.clone());
    let start = tokio::time::Instant::now();
    let response = in_time(app.oneshot(request("/7"))).await.unwrap();
    assert_eq!(kind(&response), ErrorKind::Lost);
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn lease_in_scope_is_not_renewed() {
    let locks = LockManager::in_memory();
    let handler = async |_locked: LockedId| pending::<()>().await;
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(LockScopeLayer::new().lease(Duration::from_secs(10)))
        .with_state(locks.clone());
    let start = tokio::time::Instant::now();
    let response = in_time(app.oneshot(request("/7"))).await.unwrap();
    assert_eq!(kind(&response), ErrorKind::Lost);
    assert!(start.elapsed() < Duration::from_secs(11));
}

#[tokio::test(start_paused = true)]
async fn settings_of_innermost_scope_apply() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(key("7")).await.unwrap();
    let inner = || LockScopeLayer::new().no_wait().status(StatusCode::LOCKED);
    let outer = || LockScopeLayer::new().status(StatusCode::IM_A_TEAPOT);
    let router = Router::new().route("/{id}", post(async |_locked: LockedId| ()));
    // A layer is a scope, too.
    let layer = LockLayer::by_path(locks.clone())
        .no_wait()
        .status(StatusCode::LOCKED);
    let start = tokio::time::Instant::now();
    for inner in [
        router.clone().layer(inner()),
        router.clone().layer(layer.clone()),
        router.layer(layer.skip(|_| true)),
    ] {
        let app: Router = inner.layer(outer()).with_state(locks.clone());
        assert_eq!(status(&app, "/7").await, StatusCode::LOCKED);
    }
    // The outer scope would wait.
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn wait_of_scope_bounds_locked() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key("7")).await.unwrap();
    let app: Router = Router::new()
        .route("/{id}", post(async |_locked: LockedId| ()))
        .layer(LockScopeLayer::new().wait(Duration::from_secs(2)))
        .with_state(locks.clone());
    let start = tokio::time::Instant::now();
    assert_eq!(status(&app, "/7").await, StatusCode::CONFLICT);
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test]
async fn rejection_of_locked_goes_through_on_reject() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key("7")).await.unwrap();
    let scope = LockScopeLayer::new().no_wait().on_reject(|rejection| {
        let mut response = rejection.to_response();
        *response.body_mut() = "later".to_owned();
        response
    });
    let app: Router = Router::new()
        .route("/{id}", post(async |_locked: LockedId| ()))
        .layer(scope)
        // The outer scope leaves the answer alone.
        .layer(LockScopeLayer::new().on_reject(|_| http::Response::new(String::new())))
        .with_state(locks.clone());
    let response = app.oneshot(request("/7")).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!(kind(&response), ErrorKind::Busy);
    assert_eq!(text(response).await, "later");
}

/// A layer by path, `Locked` in a scope of its own, and an error of a handler.
fn inside(locks: &LockManager) -> [Router; 3] {
    let layer = LockLayer::by_path(locks.clone()).no_wait();
    let scope = LockScopeLayer::new().no_wait();
    let fails =
        async |State(locks): State<LockManager>| locks.acquire(key("7")).no_wait().await.map(drop);
    let routes = |handler| Router::new().route("/7", handler);
    [
        routes(post(async || ())).layer(layer),
        Router::new()
            .route("/{id}", post(async |_locked: LockedId| ()))
            .layer(scope),
        routes(post(fails)).layer(LockScopeLayer::new()),
    ]
    .map(|router: Router<LockManager>| router.with_state(locks.clone()))
}

#[tokio::test]
async fn status_and_on_reject_are_those_of_outer_scope() {
    let locks = LockManager::in_memory();
    let path = LockKey::from_path("/7");
    let _guard = locks.acquire([key("7"), path]).await.unwrap();
    let tagged = |tag: &'static str| {
        LockScopeLayer::new().on_reject(move |rejection| {
            let mut response = rejection.to_response();
            response.body_mut().insert_str(0, tag);
            response
        })
    };
    for inside in inside(&locks) {
        let outside = || LockScopeLayer::new().status(StatusCode::LOCKED);
        let app = inside.clone().layer(outside());
        assert_eq!(status(&app, "/7").await, StatusCode::LOCKED);
        // The innermost one that has a setting counts, and scopes without one change nothing.
        let app = app.layer(LockScopeLayer::new().status(StatusCode::IM_A_TEAPOT));
        let app = app.layer(tagged("own: ")).layer(LockScopeLayer::new());
        let response = app
            .layer(tagged("outermost: "))
            .oneshot(request("/7"))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::LOCKED);
        assert_eq!(kind(&response), ErrorKind::Busy);
        let types = response.headers().get_all("content-type");
        assert_eq!(types.iter().count(), 1);
        assert!(text(response).await.starts_with("own: {"));
    }
}

#[tokio::test(start_paused = true)]
async fn loss_in_scope_goes_through_on_reject() {
    let locks = LockManager::in_memory();
    let handler = async |_locked: LockedId| pending::<()>().await;
    let limit = LockScopeLayer::new().max_hold(Duration::from_secs(60));
    let scope = limit.on_reject(|rejection| {
        let mut response = rejection.to_response();
        response.body_mut().insert_str(0, "written in part: ");
        response
    });
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(scope)
        .with_state(locks);
    let mut request = http::Request::post("/7").body(axum::body::Body::empty());
    let headers = request.as_mut().unwrap().headers_mut();
    headers.insert("accept", "text/plain".parse().unwrap());
    let response = in_time(app.oneshot(request.unwrap())).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(kind(&response), ErrorKind::Lost);
    let text = text(response).await;
    assert!(text.starts_with("written in part: "), "{text}");
    assert!(!text.contains('{'), "not JSON: {text}");
}
