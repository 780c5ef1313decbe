//! A lock of a scope is lost.

use std::future::pending;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::StatusCode;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_lock::manager::LostReason;
use tower_lock::{ErrorKind, LockManager, LockRejection, LockScopeLayer, Locked, OnLost};

use super::support::{LockedId, gate, key, kind, request, scoped, scopes, streaming};
use crate::served::{assert_waits, is_locked, until};

#[tokio::test]
async fn loss_in_scope_aborts_handler() {
    for scope in 0..4 {
        let locks = LockManager::in_memory();
        let router = Router::new()
            .route(
                "/closure/{id}",
                post(|Locked(_id, _guard): LockedId| pending::<()>()),
            )
            .route(
                "/function/{id}",
                post(async |_: LockedId| pending::<()>().await),
            );
        let app = scopes(&locks, router)[scope].clone();
        for path in ["/closure/7", "/function/7"] {
            let mut response = app.clone().oneshot(request(path));
            assert_waits(&mut response).await;
            assert!(locks.force_release(key("7")).await.unwrap());
            let response = response.await.unwrap();
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(kind(&response), ErrorKind::Lost);
            until(|| !is_locked(&locks)).await;
        }
    }
}

#[tokio::test]
async fn loss_in_scope_aborts_body() {
    let locks = LockManager::in_memory();
    let (gate, open) = gate();
    let handler = async move |_locked: LockedId| gate().opened().await;
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let (response, frames) = streaming();
    open.send(response).unwrap();
    let mut body = app.oneshot(request("/7")).await.unwrap().into_body();
    let mut frame = body.frame();
    assert_waits(&mut frame).await;
    assert!(locks.force_release(key("7")).await.unwrap());
    assert!(frame.await.unwrap().is_err());
    assert!(frames.is_abandoned());
}

#[tokio::test(start_paused = true)]
async fn loss_during_one_poll_aborts_handler() {
    // In the poll of the acquire, and in a later one.
    for polls in 0..2 {
        let locks = LockManager::in_memory();
        let handler = async move |State(locks): State<LockManager>, _locked: LockedId| {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            assert!(locks.force_release(key("7")).await.unwrap());
            "written under a lost lock"
        };
        let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
        let response = app.oneshot(request("/7")).await.unwrap();
        assert_eq!(kind(&response), ErrorKind::Lost);
        let rejection = response.extensions().get::<LockRejection>().unwrap();
        assert_eq!(rejection.lost_reason(), Some(LostReason::Forced));
    }
}

#[tokio::test]
async fn loss_with_continue_changes_nothing() {
    let locks = LockManager::in_memory();
    let (gate, open) = gate();
    let handler = async move |_locked: LockedId| gate().opened().await;
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(LockScopeLayer::new().on_lost(OnLost::Continue))
        .with_state(locks.clone());
    let mut response = app.oneshot(request("/7"));
    assert_waits(&mut response).await;
    assert!(locks.force_release(key("7")).await.unwrap());
    assert_waits(&mut response).await;
    let (stream, frames) = streaming();
    open.send(stream).unwrap();
    let mut body = response.await.unwrap().into_body();
    frames.data("part");
    assert!(body.frame().await.unwrap().is_ok());
}
