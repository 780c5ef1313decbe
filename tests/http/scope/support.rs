//! Routes in scopes, and handlers that wait for the test.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::oneshot;
use tower::ServiceExt;
use tower_lock::{
    ErrorKind, LockKey, LockKeys, LockLayer, LockManager, LockRejection, LockScopeLayer,
    LockTarget, Locked,
};

use crate::served::{Frames, Stream};

/// The path parameter of all routes here.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Id(String);

impl LockTarget for Id {
    fn lock_keys(&self) -> LockKeys {
        key(&self.0).into()
    }
}

pub(crate) type LockedId = Locked<Path<Id>>;

pub(crate) fn key(id: &str) -> LockKey {
    LockKey::from_parts(["id", id])
}

pub(super) fn request(path: &str) -> Request<Body> {
    Request::post(path).body(Body::empty()).unwrap()
}

/// A handler that waits for the test.
pub(super) fn gate() -> (
    impl Fn() -> Gate + Clone + Send + Sync + 'static,
    oneshot::Sender<Response>,
) {
    let (open, opened) = oneshot::channel();
    let opened = std::sync::Arc::new(tokio::sync::Mutex::new(opened));
    let gate = move || Gate(opened.clone());
    (gate, open)
}

pub(super) struct Gate(std::sync::Arc<tokio::sync::Mutex<oneshot::Receiver<Response>>>);

impl Gate {
    pub(super) async fn opened(self) -> Response {
        (&mut *self.0.lock().await).await.unwrap()
    }
}

pub(super) fn streaming() -> (Response, Frames) {
    let (body, frames) = Stream::new();
    (Response::new(Body::new(body)), frames)
}

/// Routes in a scope.
pub(super) fn scoped(locks: &LockManager, router: Router<LockManager>) -> Router {
    router
        .layer(LockScopeLayer::new())
        .with_state(locks.clone())
}

pub(super) async fn status(app: &Router, path: &str) -> StatusCode {
    app.clone().oneshot(request(path)).await.unwrap().status()
}

/// Each of them opens a scope.
pub(super) fn scopes(locks: &LockManager, router: Router<LockManager>) -> [Router; 4] {
    let passing = LockLayer::by_path(locks.clone());
    [
        scoped(locks, router.clone()),
        router
            .clone()
            .route_layer(LockLayer::by_path(locks.clone()))
            .with_state(locks.clone()),
        router
            .clone()
            .route_layer(
                LockLayer::by_path(locks.clone()).read_body_first(1_000, Duration::from_secs(1)),
            )
            .with_state(locks.clone()),
        // A request that passes the layer unlocked.
        Router::new()
            .merge(router)
            .layer(axum::middleware::from_fn(as_get))
            .layer(passing)
            .layer(axum::middleware::from_fn(as_get))
            .with_state(locks.clone()),
    ]
}

/// Swaps GET and POST.
async fn as_get(mut request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    *request.method_mut() = match *request.method() {
        Method::GET => Method::POST,
        _ => Method::GET,
    };
    next.run(request).await
}

/// Lets the other tasks run until they wait for this one.
pub(super) async fn until_idle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

pub(super) fn kind<B>(response: &http::Response<B>) -> ErrorKind {
    let rejection = response.extensions().get::<LockRejection>();
    rejection.expect("a rejection").kind()
}

pub(super) async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
