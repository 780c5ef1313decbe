//! Paths and routers of axum.

use axum::Router;
use axum::routing::get;
use http::{Method, StatusCode};
use tower_lock::{Held, LockLayer, LockManager};

use super::support::{status, text};
use crate::served::path_key;

/// Returns the statuses of requests to these paths while the lock of `held` is held.
async fn statuses<const N: usize>(held: &str, paths: [&str; N]) -> [u16; N] {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key(held)).await.unwrap();
    let app: Router = Router::new()
        .route("/{*path}", get(async || ()))
        .route_layer(LockLayer::by_path(locks).all_methods().no_wait());
    let mut statuses = [0; N];
    for (path, answered) in paths.into_iter().zip(&mut statuses) {
        *answered = status(&app, Method::GET, path).await.as_u16();
    }
    statuses
}

#[tokio::test]
async fn encoded_slash_is_slash() {
    let paths = ["/a%2Fb", "/a%2fb", "/a/b", "/ab"];
    assert_eq!(statuses("/a%2Fb", paths).await, [409, 409, 409, 200]);
    assert_eq!(statuses("/a/b", paths).await, [409, 409, 409, 200]);
}

#[tokio::test]
async fn encoded_character_equals_plain_one() {
    let paths = ["/A", "/%41", "/a", "/%61"];
    assert_eq!(statuses("/A", paths).await, [409, 409, 200, 200]);
    let paths = ["/a@b:1", "/a%40b%3A1", "/a%40b:1", "/a%2540b:1"];
    assert_eq!(statuses("/a@b:1", paths).await, [409, 409, 409, 200]);
    let paths = ["/ü", "/%c3%BC", "/u"];
    assert_eq!(statuses("/ü", paths).await, [409, 409, 200]);
}

#[tokio::test]
async fn slash_at_end_is_ignored() {
    let paths = ["/a", "/a/", "/a?x", "/a/?x", "/b/"];
    assert_eq!(statuses("/a", paths).await, [409, 409, 409, 409, 200]);
}

#[tokio::test]
async fn key_in_nested_router_is_original_path() {
    let locks = LockManager::in_memory();
    let inner = Router::new()
        .route(
            "/{id}",
            get(async |held: Held| held.key().as_str().to_owned()),
        )
        .route_layer(LockLayer::by_path(locks).all_methods());
    let app: Router = Router::new().nest("/v1/orders", inner);
    assert_eq!(text(&app, "/v1/orders/42").await, "/v1/orders/42");
}

#[tokio::test]
async fn nested_router_sees_outer_path_parameters() {
    let locks = LockManager::in_memory();
    let inner = Router::new()
        .route(
            "/close",
            get(async |held: Held| held.key().as_str().to_owned()),
        )
        .route_layer(LockLayer::by_path_param(locks, "account").all_methods());
    let app: Router = Router::new().nest("/accounts/{account}", inner);
    assert_eq!(text(&app, "/accounts/a%20b/close").await, "account:a b");
}

#[tokio::test]
async fn path_parameter_without_utf8_is_400() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route("/accounts/{account}", get(async || ()))
        .route_layer(LockLayer::by_path_param(locks, "account").all_methods());
    assert_eq!(
        status(&app, Method::GET, "/accounts/7").await,
        StatusCode::OK
    );
    assert_eq!(
        status(&app, Method::GET, "/accounts/%FF").await,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn route_layer_locks_for_405_and_not_for_404() {
    let locks = LockManager::in_memory();
    let _guards = (
        locks.acquire(path_key("/a")).await.unwrap(),
        locks.acquire(path_key("/nowhere")).await.unwrap(),
    );
    let layer = || LockLayer::by_path(locks.clone()).all_methods().no_wait();
    let router = || Router::new().route("/a", get(async || ()));
    let on_routes: Router = router().route_layer(layer());
    assert_eq!(
        status(&on_routes, Method::POST, "/a").await,
        StatusCode::CONFLICT
    );
    assert_eq!(
        status(&on_routes, Method::GET, "/nowhere").await,
        StatusCode::NOT_FOUND
    );
    let on_all: Router = router().layer(layer());
    assert_eq!(
        status(&on_all, Method::GET, "/nowhere").await,
        StatusCode::CONFLICT
    );
    let on_handler: Router = Router::new().route("/a", get(async || ()).route_layer(layer()));
    assert_eq!(
        status(&on_handler, Method::POST, "/a").await,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(
        status(&on_handler, Method::GET, "/a").await,
        StatusCode::CONFLICT
    );
}
