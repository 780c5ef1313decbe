//! The readiness of the inner service, and the call of the ready one.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_lock::service::ReadBody;
use tower_lock::{LockLayer, LockManager, LockScopeLayer};

use super::support::show_held;
use crate::served::{assert_waits, is_locked, path_key, post};

/// A service that panics if it is called before it was ready. A clone is not ready.
struct OnceReady {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for OnceReady {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            calls: Arc::clone(&self.calls),
        }
    }
}

impl<B> Service<Request<B>> for OnceReady {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(self.ready, "called a service that was not ready");
        self.ready = false;
        self.calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::default()))
    }
}

#[tokio::test]
async fn ready_service_is_called() {
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_path(locks.clone());
    assert_calls_ready(&layer, &locks).await;
    let layer = layer.read_body_first(1_000, Duration::from_secs(1));
    assert_calls_ready(&layer, &locks).await;
}

async fn assert_calls_ready<L>(layer: &L, locks: &LockManager)
where
    L: Layer<OnceReady, Service: Service<Request<String>, Error = Infallible>>,
    <L::Service as Service<Request<String>>>::Response: std::fmt::Debug,
{
    let calls = Arc::new(AtomicUsize::new(0));
    let mut service = layer.layer(OnceReady {
        ready: false,
        calls: Arc::clone(&calls),
    });
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let mut waiting = Box::pin(service.ready().await.unwrap().call(post("/a")));
    assert_waits(&mut waiting).await;
    // While one request waits, the next ones pass through the same service, locked and unlocked.
    service
        .ready()
        .await
        .unwrap()
        .call(post("/b"))
        .await
        .unwrap();
    let get = Request::get("/a").body(String::new()).unwrap();
    service.ready().await.unwrap().call(get).await.unwrap();
    drop(guard);
    waiting.await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn unready_inner_service_makes_layer_unready() {
    let never = || tower::limit::ConcurrencyLimit::new(service_fn(show_held), 0);
    let mut locked = LockLayer::by_path(LockManager::in_memory()).layer(never());
    let mut scope = LockScopeLayer::new().layer(never());
    let mut body_first = LockLayer::by_path(LockManager::in_memory())
        .read_body_first(1_000, Duration::from_secs(1))
        .layer(tower::limit::ConcurrencyLimit::new(
            service_fn(async |_: Request<ReadBody<String>>| {
                Ok::<_, Infallible>(Response::new(String::new()))
            }),
            0,
        ));
    poll_fn(|cx| {
        assert!(Service::<Request<String>>::poll_ready(&mut body_first, cx).is_pending());
        assert!(Service::<Request<String>>::poll_ready(&mut locked, cx).is_pending());
        assert!(Service::<Request<String>>::poll_ready(&mut scope, cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn unpolled_future_does_nothing() {
    let locks = LockManager::in_memory();
    let mut service = LockLayer::by_path(locks.clone()).layer(service_fn(show_held));
    let future = service.call(post("/a"));
    assert!(!is_locked(&locks));
    let future = pin!(future);
    assert_eq!(future.await.unwrap().status(), StatusCode::OK);
}
