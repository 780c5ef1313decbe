//! The lock of `Locked` in a scope, from its grant to the end of the response.

use std::future::pending;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::post;
use futures_util::FutureExt;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::{mpsc, oneshot};
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;
use tower_lock::{Held, LockGuard, LockLayer, LockManager, Locked, Owner};

use super::support::{
    LockedId, gate, key, request, scoped, scopes, status, streaming, text, until_idle,
};
use crate::served::{assert_waits, is_locked, path_key, until};

#[tokio::test]
async fn closure_in_scope_stays_locked() {
    for scope in 0..4 {
        let locks = LockManager::in_memory();
        let (gate, open) = gate();
        let router = Router::new().route(
            "/{id}",
            post(move |Locked(_id, _guard): LockedId| {
                let gate = gate();
                async move { gate.opened().await }
            }),
        );
        let app = scopes(&locks, router)[scope].clone();
        let mut response = app.oneshot(request("/7"));
        assert_waits(&mut response).await;
        assert!(locks.is_locked(key("7")).await.unwrap(), "scope {scope}");
        open.send("done".into_response()).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!is_locked(&locks), "scope {scope}");
    }
}

#[tokio::test]
async fn streaming_body_in_scope_stays_locked() {
    for scope in 0..4 {
        let locks = LockManager::in_memory();
        let (gate, open) = gate();
        let handler = async move |_locked: LockedId| gate().opened().await;
        let app = scopes(&locks, Router::new().route("/{id}", post(handler)))[scope].clone();
        let (response, frames) = streaming();
        open.send(response).unwrap();
        let mut body = app.oneshot(request("/7")).await.unwrap().into_body();
        for part in ["one", "two"] {
            assert!(locks.is_locked(key("7")).await.unwrap(), "scope {scope}");
            frames.data(part);
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), part);
        }
        drop(frames);
        assert!(body.frame().await.is_none());
        assert!(!is_locked(&locks), "scope {scope}");
    }
}

#[tokio::test]
async fn broken_body_in_scope_releases_lock() {
    let locks = LockManager::in_memory();
    let (gate, open) = gate();
    let handler = async move |_locked: LockedId| gate().opened().await;
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let (response, frames) = streaming();
    open.send(response).unwrap();
    let mut body = app.oneshot(request("/7")).await.unwrap().into_body();
    assert!(is_locked(&locks));
    frames.fail();
    assert!(body.frame().await.unwrap().is_err());
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn guard_is_only_hold_in_scope() {
    async fn handler(
        Locked(_, guard): LockedId,
        State(locks): State<LockManager>,
        owner: Owner,
    ) -> String {
        let again = locks.acquire(key("7")).owner(owner).await.unwrap();
        let (twice, held) = (again.hold_count(), guard.held());
        drop(again);
        let once = guard.hold_count();
        drop(guard);
        format!("{twice} {once} {}", held.hold_count())
    }
    let locks = LockManager::in_memory();
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let response = app.oneshot(request("/7")).await.unwrap();
    // The scope has the hold of the guard that was dropped.
    assert_eq!(text(response).await, "2 1 1");
    assert!(!is_locked(&locks));
}

/// A view in a task of the handler does not keep the lock, and a guard does.
#[tokio::test]
async fn held_in_task_ends_with_response() {
    let locks = LockManager::in_memory();
    let (sender, mut tasks) = mpsc::unbounded_channel();
    let handler = async move |view: Held, Locked(_, guard): LockedId| {
        let (go, may_go) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            may_go.await.unwrap();
            (view.is_held(), guard.is_held())
        });
        sender.send((go, task)).unwrap();
        StatusCode::ACCEPTED
    };
    let layer = LockLayer::by_path(locks.clone()).no_wait();
    let router = Router::new().route("/{id}", post(handler)).layer(layer);
    let app: Router = router.with_state(locks.clone());
    assert_eq!(status(&app, "/7").await, StatusCode::ACCEPTED);
    let (go, task) = tasks.recv().await.unwrap();
    assert!(!locks.is_locked(path_key("/7")).await.unwrap());
    assert!(locks.is_locked(key("7")).await.unwrap());
    go.send(()).unwrap();
    assert_eq!(task.await.unwrap(), (false, true));
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn release_in_scope_releases_early() {
    let locks = LockManager::in_memory();
    let (gate, open) = gate();
    let handler = async move |Locked(_, guard): LockedId| {
        guard.release().await.unwrap();
        gate().opened().await
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let mut response = app.oneshot(request("/7"));
    assert_waits(&mut response).await;
    assert!(!is_locked(&locks));
    // The next holder is none of this request's concern.
    let other = locks.acquire(key("7")).no_wait().await.unwrap();
    assert!(locks.force_release(key("7")).await.unwrap());
    open.send("done".into_response()).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    drop(other);
}

#[tokio::test]
async fn release_across_end_of_response_is_complete() {
    for is_release_first in [true, false] {
        let locks = LockManager::in_memory();
        let (gate, open) = gate();
        let (sender, mut guards) = mpsc::unbounded_channel();
        let handler = async move |Locked(_, guard): LockedId| {
            sender.send(guard).unwrap();
            gate().opened().await
        };
        let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
        let mut response = app.oneshot(request("/7"));
        assert_waits(&mut response).await;
        let guard: LockGuard = guards.recv().await.unwrap();
        let mut release = Box::pin(guard.release());
        let released = is_release_first.then(|| release.as_mut().now_or_never());
        open.send("done".into_response()).unwrap();
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
        match released.flatten() {
            Some(outcome) => outcome.unwrap(),
            None => release.await.unwrap(),
        }
        assert!(!is_locked(&locks));
    }
}

#[tokio::test]
async fn guard_in_task_outlives_scope() {
    let locks = LockManager::in_memory();
    let (finish, finished) = oneshot::channel::<()>();
    let finished = std::sync::Arc::new(std::sync::Mutex::new(Some(finished)));
    let handler = async move |Locked(_, guard): LockedId| {
        let finished = finished.lock().unwrap().take().unwrap();
        tokio::spawn(async move {
            finished.await.unwrap();
            drop(guard);
        });
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    assert_eq!(status(&app, "/7").await, StatusCode::OK);
    until_idle().await;
    assert!(is_locked(&locks));
    finish.send(()).unwrap();
    until(|| !is_locked(&locks)).await;
}

#[tokio::test]
async fn guard_dropped_in_task_is_kept_by_open_scope() {
    let locks = LockManager::in_memory();
    let (gate, open) = gate();
    let handler = async move |Locked(_, guard): LockedId| {
        tokio::spawn(async move { drop(guard) }).await.unwrap();
        gate().opened().await
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let response = tokio::spawn(app.oneshot(request("/7")));
    until(|| is_locked(&locks)).await;
    until_idle().await;
    assert!(is_locked(&locks));
    open.send("done".into_response()).unwrap();
    response.await.unwrap().unwrap();
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn panic_in_scope_releases_lock() {
    async fn handler(_locked: LockedId) {
        tokio::task::yield_now().await;
        panic!("a handler that panics");
    }
    let locks = LockManager::in_memory();
    let router = Router::new().route("/{id}", post(handler));
    let inside = router.clone().layer(CatchPanicLayer::new());
    let inside = scoped(&locks, inside);
    let outside = scoped(&locks, router).layer(CatchPanicLayer::new());
    for app in [inside, outside] {
        let answered = status(&app, "/7").await;
        assert_eq!(answered, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!is_locked(&locks));
    }
}

#[tokio::test]
async fn dropped_request_in_scope_releases_lock() {
    let locks = LockManager::in_memory();
    let handler = async |_locked: LockedId| pending::<()>().await;
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let mut response = app.oneshot(request("/7"));
    assert_waits(&mut response).await;
    assert!(is_locked(&locks));
    drop(response);
    assert!(!is_locked(&locks));
}
