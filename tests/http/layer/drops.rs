//! The order in which handlers, bodies and locks are dropped.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use http::{Request, Response};
use http_body::Body;
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{LockLayer, LockManager, LockScope};

use super::support::show_held;
use crate::served::{Gate, OnDrop, assert_waits, in_time, path_key, post, until};

/// The number of held locks when the handler's future was dropped.
async fn held_at_drop(
    layer: impl FnOnce(LockManager) -> LockLayer<tower_lock::keys::ByPath>,
    end: impl AsyncFnOnce(BoxFuture<'static, ()>),
) -> Option<usize> {
    let locks = LockManager::in_memory();
    let seen = Arc::new(Mutex::new(None));
    let (watched, saw) = (locks.clone(), Arc::clone(&seen));
    let service = layer(locks).layer(service_fn(move |_: Request<String>| {
        let (watched, saw) = (watched.clone(), Arc::clone(&saw));
        let on_drop = OnDrop(move || *saw.lock().unwrap() = Some(watched.snapshot().held));
        async move {
            let _on_drop = on_drop;
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    let mut request: BoxFuture<'static, ()> = Box::pin(async move {
        drop(service.oneshot(post("/a")).await);
    });
    assert_waits(&mut request).await;
    end(request).await;
    *seen.lock().unwrap()
}

#[tokio::test]
async fn cancelled_handler_is_dropped_before_its_lock() {
    let held = held_at_drop(LockLayer::by_path, async |request| drop(request)).await;
    assert_eq!(held, Some(1));
}

#[tokio::test]
async fn completed_handler_is_dropped_before_its_lock() {
    /// A future that is ready at once and ends only when it is dropped.
    struct AtOnce<F: FnMut()>(#[allow(dead_code)] OnDrop<F>);

    impl<F: FnMut()> Future for AtOnce<F> {
        type Output = Result<Response<String>, Infallible>;

        fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Ready(Ok(Response::new(String::new())))
        }
    }

    let locks = LockManager::in_memory();
    let seen = Arc::new(Mutex::new(None));
    let (watched, saw) = (locks.clone(), Arc::clone(&seen));
    let service = LockLayer::by_path(locks).layer(service_fn(move |_: Request<String>| {
        let (watched, saw) = (watched.clone(), Arc::clone(&saw));
        AtOnce(OnDrop(move || {
            *saw.lock().unwrap() = Some(watched.snapshot().held);
        }))
    }));
    drop(service.oneshot(post("/a")).await);
    assert_eq!(*seen.lock().unwrap(), Some(1));
}

#[tokio::test]
async fn kept_lock_is_released_before_own() {
    let locks = LockManager::in_memory();
    let (gate, mut calls) = Gate::new();
    let service = LockLayer::by_path(locks.clone())
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let mut response = Box::pin(service.oneshot(post("/a")));
    assert_waits(&mut response).await;
    let call = calls.recv().await.unwrap();
    let scope = LockScope::of(&call.request.extensions).unwrap();
    scope.keep(locks.acquire("kept").await.unwrap());
    drop(scope);
    // It returns its futures in the order in which they are woken.
    let mut waiters: FuturesUnordered<_> = [path_key("/a"), "kept".into()]
        .map(|key| locks.acquire(key).into_future())
        .into_iter()
        .collect();
    assert_waits(&mut waiters.next()).await;
    call.finish();
    response.await.unwrap();
    let first = waiters.next().await.unwrap().unwrap();
    assert_eq!(first.key().as_str(), "kept");
}

#[tokio::test]
async fn panic_in_call_releases_lock() {
    let locks = LockManager::in_memory();
    let panics = |_: Request<String>| -> std::future::Ready<Result<Response<String>, Infallible>> {
        std::panic::resume_unwind(Box::new("of a service"));
    };
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(panics));
    let request = tokio::spawn(service.oneshot(post("/a")));
    assert!(request.await.unwrap_err().is_panic());
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn aborted_handler_is_dropped_before_response() {
    let layer = |locks| LockLayer::by_path(locks).max_hold(Duration::from_secs(1));
    let held = held_at_drop(layer, in_time).await;
    // The lock is lost by then. The test requires that the handler was dropped.
    assert!(held.is_some());
}

#[tokio::test]
async fn body_is_dropped_before_its_lock() {
    struct Watching(Option<OnDrop<Box<dyn FnMut() + Send>>>);

    impl Body for Watching {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
            assert!(self.0.is_some());
            Poll::Pending
        }
    }

    let locks = LockManager::in_memory();
    let seen = Arc::new(Mutex::new(None));
    let (watched, saw) = (locks.clone(), Arc::clone(&seen));
    let service = LockLayer::by_path(locks).layer(service_fn(move |_: Request<String>| {
        let (watched, saw) = (watched.clone(), Arc::clone(&saw));
        let on_drop = move || *saw.lock().unwrap() = Some(watched.snapshot().held);
        let body = Watching(Some(OnDrop(Box::new(on_drop))));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), None);
    drop(response);
    assert_eq!(*seen.lock().unwrap(), Some(1));
}

#[tokio::test]
async fn dropped_waiting_request_leaves_no_trace() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(show_held));
    let mut waiting = Box::pin(service.oneshot(post("/a")));
    assert_waits(&mut waiting).await;
    assert_eq!(locks.snapshot().waiting, 1);
    drop(waiting);
    assert_eq!(locks.snapshot().waiting, 0);
    drop(guard);
    until(|| locks.snapshot().is_idle()).await;
}
