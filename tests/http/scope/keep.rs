//! Guards that a handler or a task hands over to its scope.

use std::future::pending;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::post;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tower::ServiceExt;
use tower_lock::{ErrorKind, LockManager, LockScope, Locked};

use super::support::{
    LockedId, gate, kind, request, scoped, scopes, status, streaming, until_idle,
};
use crate::served::{assert_waits, is_locked, until};

#[tokio::test]
async fn kept_guard_is_held_until_response_ends() {
    for scope in 0..4 {
        let locks = LockManager::in_memory();
        let (gate, open) = gate();
        let handler = async move |State(locks): State<LockManager>, scope: LockScope| {
            scope.keep(locks.acquire("mine").await.unwrap());
            gate().opened().await
        };
        let app = scopes(&locks, Router::new().route("/{id}", post(handler)))[scope].clone();
        let (response, frames) = streaming();
        open.send(response).unwrap();
        let mut body = app.oneshot(request("/7")).await.unwrap().into_body();
        assert!(locks.is_locked("mine").await.unwrap());
        drop(frames);
        assert!(body.frame().await.is_none());
        assert!(!is_locked(&locks));
    }
}

#[tokio::test]
async fn loss_of_kept_guard_aborts_handler() {
    let locks = LockManager::in_memory();
    let handler = async |State(locks): State<LockManager>, scope: LockScope| {
        scope.keep(locks.acquire("mine").await.unwrap());
        pending::<()>().await;
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let mut response = app.oneshot(request("/7"));
    assert_waits(&mut response).await;
    assert!(locks.force_release("mine").await.unwrap());
    assert_eq!(kind(&response.await.unwrap()), ErrorKind::Lost);
}

#[tokio::test]
async fn guard_kept_by_task_wakes_request_at_loss() {
    let locks = LockManager::in_memory();
    let (keep, mut kept) = mpsc::unbounded_channel();
    let handler = async move |scope: LockScope| {
        keep.send(scope).unwrap();
        pending::<()>().await;
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let response = tokio::spawn(app.oneshot(request("/7")));
    let scope: LockScope = kept.recv().await.unwrap();
    until_idle().await;
    scope.keep(locks.acquire("mine").await.unwrap());
    until_idle().await;
    assert!(locks.force_release("mine").await.unwrap());
    until(|| response.is_finished()).await;
    assert_eq!(kind(&response.await.unwrap().unwrap()), ErrorKind::Lost);
    // The scope has closed.
    scope.keep(locks.acquire("mine").await.unwrap());
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn kept_locked_guard_is_held_once() {
    let locks = LockManager::in_memory();
    let (gate, open) = gate();
    let handler = async move |scope: LockScope, Locked(_, guard): LockedId| {
        let held = guard.held();
        scope.keep(guard);
        assert_eq!(held.hold_count(), 1);
        gate().opened().await
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let mut response = app.oneshot(request("/7"));
    assert_waits(&mut response).await;
    assert!(is_locked(&locks));
    open.send("done".into_response()).unwrap();
    response.await.unwrap();
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn scope_is_absent_without_layer() {
    let app: Router = Router::new()
        .route("/needed", post(async |_scope: LockScope| ()))
        .route(
            "/wanted",
            post(async |scope: Option<LockScope>| assert!(scope.is_none())),
        );
    let response = status(&app, "/needed").await;
    assert_eq!(response, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(status(&app, "/wanted").await, StatusCode::OK);
}

#[tokio::test]
async fn optional_scope_is_present_under_layer() {
    let handler = post(async |scope: Option<LockScope>| assert!(scope.is_some()));
    let app = scoped(&LockManager::in_memory(), Router::new().route("/", handler));
    assert_eq!(status(&app, "/").await, StatusCode::OK);
}
