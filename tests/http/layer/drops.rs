//! The order in which handlers, bodies and locks are dropped.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response};
use http_body::Body;
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::manager::AcquireFuture;
use tower_lock::service::LockBody;
use tower_lock::{LockLayer, LockManager, LockRejection, LockScope};

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

/// Queues for the lock of the layer and for a kept one. The waiters are returned in the order in which they are woken.
fn queue(locks: &LockManager) -> FuturesUnordered<AcquireFuture> {
    let keys = [path_key("/a"), "kept".into()];
    let waiters = keys.map(|key| locks.acquire(key).into_future());
    let mut waiters: FuturesUnordered<_> = waiters.into_iter().collect();
    assert!(waiters.next().now_or_never().is_none());
    waiters
}

#[tokio::test]
async fn kept_lock_goes_before_own_in_panic_of_call() {
    type Response = std::future::Ready<Result<http::Response<String>, Infallible>>;

    let locks = LockManager::in_memory();
    let (manager, queued) = (locks.clone(), Arc::new(Mutex::new(None)));
    let queues = Arc::clone(&queued);
    let call = move |request: Request<String>| -> Response {
        let scope = LockScope::of(request.extensions()).unwrap();
        let kept = manager.acquire("kept").into_future().now_or_never();
        scope.keep(kept.unwrap().unwrap());
        *queues.lock().unwrap() = Some(queue(&manager));
        std::panic::resume_unwind(Box::new("a call"))
    };
    let service = LockLayer::by_path(locks).layer(service_fn(call));
    let served = tokio::spawn(async { drop(service.oneshot(post("/a")).await) });
    assert!(served.await.unwrap_err().is_panic());
    let mut waiters = queued.lock().unwrap().take().unwrap();
    let first = waiters.next().await.unwrap().unwrap();
    assert_eq!(first.key().as_str(), "kept");
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
    let mut waiters = queue(&locks);
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

/// A body that records at its drop how many locks are held.
struct Watching(LockManager, Arc<Mutex<Option<usize>>>);

impl Drop for Watching {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(self.0.snapshot().held);
    }
}

impl Body for Watching {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Serves one request with such a body.
async fn watched<F>(
    layer: impl FnOnce(LockManager) -> LockLayer<tower_lock::keys::ByPath>,
    respond: impl FnOnce(Watching) -> F + Send + 'static,
) -> (
    Result<Response<LockBody<Watching>>, tokio::task::JoinError>,
    Arc<Mutex<Option<usize>>>,
)
where
    F: Future<Output = Result<Response<Watching>, Infallible>> + Send + 'static,
{
    let (locks, seen) = (LockManager::in_memory(), Arc::default());
    let once = Mutex::new(Some((respond, Watching(locks.clone(), Arc::clone(&seen)))));
    let once = Arc::new(once);
    let service = layer(locks).layer(service_fn(move |_: Request<String>| {
        let (respond, body) = once.lock().unwrap().take().unwrap();
        respond(body)
    }));
    let served = tokio::spawn(service.oneshot(post("/a"))).await;
    (served.map(|response| response.unwrap()), seen)
}

#[tokio::test]
async fn body_is_dropped_before_its_lock() {
    let respond = |body| std::future::ready(Ok(Response::new(body)));
    let (response, seen) = watched(LockLayer::by_path, respond).await;
    assert_eq!(*seen.lock().unwrap(), None);
    drop(response.unwrap());
    assert_eq!(*seen.lock().unwrap(), Some(1));
}

/// The layer renders the rejection again.
#[tokio::test]
async fn body_goes_before_lock_in_panic_of_on_reject() {
    let panics = |_| -> Response<String> { std::panic::resume_unwind(Box::new("`on_reject`")) };
    let layer = move |locks| LockLayer::by_path(locks).on_reject(panics);
    let locks = LockManager::in_memory();
    let _held = locks.acquire("other").await.unwrap();
    let busy = locks.acquire("other").no_wait().await.unwrap_err();
    let rejection = LockRejection::from(busy).to_response();
    let respond = |body| std::future::ready(Ok(rejection.map(|_| body)));
    let (response, seen) = watched(layer, respond).await;
    assert!(response.unwrap_err().is_panic());
    assert_eq!(*seen.lock().unwrap(), Some(1));
}

#[tokio::test]
async fn body_goes_before_lock_in_panic_of_dropped_handler() {
    /// Panics when it is dropped after its response.
    struct Panics(Option<Watching>);

    impl Future for Panics {
        type Output = Result<Response<Watching>, Infallible>;

        fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Ready(Ok(Response::new(self.0.take().unwrap())))
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            if self.0.is_none() {
                std::panic::resume_unwind(Box::new("a drop"));
            }
        }
    }

    let (response, seen) = watched(LockLayer::by_path, |body| Panics(Some(body))).await;
    assert!(response.unwrap_err().is_panic());
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
