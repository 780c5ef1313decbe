//! Requests that end at any point: no key is left.

use std::convert::Infallible;
use std::future::Future;
use std::task::Poll;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use tokio::task::yield_now;
use tower::ServiceExt;
use tower_lock::{LockLayer, LockManager, LockScope, LockScopeLayer, Locked};

use super::support::{LockedId, key, request};
use crate::served::{is_locked, until};

const FRAMES: usize = 4;

/// A body that returns pending before each frame.
fn slow_body() -> Body {
    Body::from_stream(stream::unfold(0, async |frame| {
        yield_now().await;
        (frame < FRAMES).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"frame")), frame + 1))
    }))
}

/// Locks a key by the extractor and two by hand, of which one is released, and waits at every turn.
async fn handler(scope: LockScope, State(locks): State<LockManager>, locked: LockedId) -> Body {
    yield_now().await;
    scope.keep(locks.acquire("kept").await.unwrap());
    yield_now().await;
    let early = locks.acquire("early").await.unwrap();
    yield_now().await;
    early.release().await.unwrap();
    drop(locked);
    yield_now().await;
    slow_body()
}

fn apps(locks: &LockManager) -> Vec<Router> {
    let function = Router::new().route("/{id}", post(handler));
    let closure = Router::new().route(
        "/{id}",
        post(|Locked(_id, _guard): LockedId| async {
            yield_now().await;
            slow_body()
        }),
    );
    let layer = || LockLayer::by_path(locks.clone());
    let mut apps = Vec::new();
    for router in [function, closure] {
        apps.push(router.clone().layer(LockScopeLayer::new()));
        apps.push(router.clone().layer(layer()));
        apps.push(router.clone().layer(LockScopeLayer::new()).layer(layer()));
        apps.push(router.layer(layer()).layer(LockScopeLayer::new()));
    }
    let apps = apps.into_iter();
    apps.map(|app| app.with_state(locks.clone())).collect()
}

/// Polls up to this often, with a turn of the other tasks after each poll.
async fn after_polls<F: Future + Unpin>(future: &mut F, polls: usize) -> Option<F::Output> {
    for _ in 0..polls {
        if let Poll::Ready(output) = futures_util::poll!(&mut *future) {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

async fn assert_free(locks: &LockManager, point: &str) {
    assert!(!is_locked(locks), "{point}: a lock is held");
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn request_dropped_after_any_poll_leaves_no_key() {
    let locks = LockManager::in_memory();
    for (app, router) in apps(&locks).into_iter().enumerate() {
        let mut polls = 0;
        loop {
            let mut response = Box::pin(router.clone().oneshot(request("/7")));
            let is_done = after_polls(&mut response, polls).await.is_some();
            drop(response);
            assert_free(&locks, &format!("app {app} after {polls} polls")).await;
            if is_done {
                break;
            }
            polls += 1;
        }
        assert!(polls > 1, "app {app} has no await to drop at");
    }
}

#[tokio::test]
async fn waiting_request_dropped_anywhere_leaves_queue() {
    let locks = LockManager::in_memory();
    for (app, router) in apps(&locks).into_iter().enumerate() {
        for polls in 0..4 {
            let guard = locks.acquire(key("7")).await.unwrap();
            let mut response = Box::pin(router.clone().oneshot(request("/7")));
            assert!(after_polls(&mut response, polls).await.is_none());
            drop(response);
            assert_eq!(locks.snapshot().waiting, 0);
            drop(guard);
            assert_free(&locks, &format!("app {app} after {polls} polls")).await;
        }
    }
}

#[tokio::test]
async fn body_dropped_after_any_frame_leaves_no_key() {
    let locks = LockManager::in_memory();
    for (app, router) in apps(&locks).into_iter().enumerate() {
        for frames in 0..=FRAMES {
            let response: Response = router.clone().oneshot(request("/7")).await.unwrap();
            let mut body = response.into_body();
            for _ in 0..frames {
                assert!(body.frame().await.unwrap().is_ok());
            }
            assert!(is_locked(&locks), "app {app} after {frames} frames");
            if frames == FRAMES {
                assert!(body.frame().await.is_none());
            }
            drop(body);
            assert_free(&locks, &format!("app {app} after {frames} frames")).await;
        }
    }
}
