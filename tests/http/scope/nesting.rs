//! Scopes and layers inside one another, of one manager and of two.

use std::future::pending;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::routing::post;
use http::StatusCode;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_lock::{ErrorKind, Held, LockLayer, LockManager, LockScopeLayer, Locked};

use super::support::{LockedId, gate, key, kind, request, status, streaming};
use crate::served::{assert_waits, is_locked, path_key};

#[tokio::test]
async fn nested_scopes_and_layers_release_all() {
    type Nested = fn(Router<LockManager>, &LockManager) -> Router<LockManager>;
    let scope: Nested = |router, _| router.layer(LockScopeLayer::new());
    let layer: Nested = |router, locks| router.layer(LockLayer::by_path(locks.clone()));
    for nested in [
        [scope, scope],
        [scope, layer],
        [layer, scope],
        [layer, layer],
    ] {
        let locks = LockManager::in_memory();
        let (gate, open) = gate();
        let handler = async move |_locked: LockedId| gate().opened().await;
        let mut router = Router::new().route("/{id}", post(handler));
        for around in nested {
            router = around(router, &locks);
        }
        let app: Router = router.with_state(locks.clone());
        let (response, frames) = streaming();
        open.send(response).unwrap();
        let mut body = app
            .clone()
            .oneshot(request("/7"))
            .await
            .unwrap()
            .into_body();
        assert!(locks.is_locked(key("7")).await.unwrap());
        drop(frames);
        assert!(body.frame().await.is_none());
        assert!(!is_locked(&locks));
    }
}

#[tokio::test]
async fn loss_of_layer_lock_aborts_inner_scope() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route(
            "/{id}",
            post(async |_locked: LockedId| pending::<()>().await),
        )
        .layer(LockScopeLayer::new())
        .layer(LockLayer::by_path(locks.clone()))
        .with_state(locks.clone());
    let mut response = app.oneshot(request("/7"));
    assert_waits(&mut response).await;
    assert!(locks.force_release(path_key("/7")).await.unwrap());
    assert_eq!(kind(&response.await.unwrap()), ErrorKind::Lost);
    assert!(!locks.is_locked(key("7")).await.unwrap());
}

#[derive(Clone)]
struct Two {
    first: LockManager,
    second: LockManager,
}

impl FromRef<Two> for LockManager {
    fn from_ref(two: &Two) -> Self {
        two.second.clone()
    }
}

#[tokio::test]
async fn two_managers_keep_owners_apart() {
    let two = Two {
        first: LockManager::in_memory(),
        second: LockManager::in_memory(),
    };
    let Two { first, second } = &two;
    let handler = async |State(two): State<Two>, held: Held, Locked(_, guard): LockedId| {
        assert_eq!(held.hold_count(), 2);
        assert_ne!(held.owner(), guard.owner());
        let again = two.second.acquire(key("7")).owner(guard.owner());
        assert_eq!(again.no_wait().await.unwrap().hold_count(), 2);
    };
    // The layers of the managers first, second, first on one key.
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(LockLayer::by_path(first.clone()).no_wait())
        .layer(LockLayer::by_path(second.clone()).no_wait())
        .layer(LockLayer::by_path(first.clone()).no_wait())
        .with_state(two.clone());
    assert_eq!(status(&app, "/7").await, StatusCode::OK);
    assert!(!is_locked(first) && !is_locked(second));
}

#[tokio::test]
async fn body_keeps_locks_of_two_managers() {
    let [first, second] = [(); 2].map(|()| LockManager::in_memory());
    let (gate, open) = gate();
    let handler = async move |_held: Held| gate().opened().await;
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(LockLayer::by_path(first.clone()))
        .layer(LockLayer::by_path(second.clone()));
    let (response, frames) = streaming();
    open.send(response).unwrap();
    let mut body = app.oneshot(request("/7")).await.unwrap().into_body();
    assert!(is_locked(&first) && is_locked(&second));
    frames.data("part");
    body.frame().await.unwrap().unwrap();
    assert!(is_locked(&first) && is_locked(&second));
    drop(frames);
    assert!(body.frame().await.is_none());
    assert!(!is_locked(&first) && !is_locked(&second));
}
