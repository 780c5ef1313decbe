//! Layers inside layers.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_lock::{Held, LockLayer, LockManager, Owner};

use super::support::{show_held, text};
use crate::served::{is_locked, path_key, post, until};

#[tokio::test]
async fn layers_with_one_key_hold_one_lock_twice() {
    let locks = LockManager::in_memory();
    let service = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()).no_wait())
        .layer(LockLayer::by_path(locks.clone()).no_wait())
        .service(service_fn(|request: Request<String>| {
            let held = request.extensions().get::<Held>().unwrap();
            std::future::ready(Ok::<_, Infallible>(Response::new(
                held.hold_count().to_string(),
            )))
        }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(text(response).await, "2");
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn layers_with_two_keys_hold_both_and_show_inner_one() {
    let locks = LockManager::in_memory();
    let checked = locks.clone();
    let service = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(LockLayer::by_header(locks.clone(), "x-id"))
        .service(service_fn(move |request: Request<String>| {
            let held = request.extensions().get::<Held>().unwrap();
            assert_eq!(checked.snapshot().held, 2);
            std::future::ready(Ok::<_, Infallible>(Response::new(
                held.key().as_str().to_owned(),
            )))
        }));
    let mut request = post("/a");
    request.headers_mut().insert("x-id", "7".parse().unwrap());
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(text(response).await, "x-id:7");
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn owner_in_extensions_re_enters() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let service = LockLayer::by_path(locks.clone())
        .no_wait()
        .layer(service_fn(show_held));
    let mut request = post("/a");
    request.extensions_mut().insert::<Owner>(guard.owner());
    let response = service.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let stranger = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(stranger.status(), StatusCode::CONFLICT);
}
