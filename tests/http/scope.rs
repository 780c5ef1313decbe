//! The scope of a request: which locks it keeps, and until when.

use std::future::pending;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRef, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::FutureExt;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;
use tower_lock::{
    Error, ErrorKind, Held, LockGuard, LockKey, LockKeys, LockLayer, LockManager, LockRejection,
    LockScope, LockScopeLayer, LockTarget, Locked, OnLost, Owner,
};

use crate::served::{Frames, Stream, assert_waits, in_time, is_locked, path_key, until};

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

pub(crate) fn request(path: &str) -> Request<Body> {
    Request::post(path).body(Body::empty()).unwrap()
}

/// A handler that waits for the test.
fn gate() -> (
    impl Fn() -> Gate + Clone + Send + Sync + 'static,
    oneshot::Sender<Response>,
) {
    let (open, opened) = oneshot::channel();
    let opened = std::sync::Arc::new(tokio::sync::Mutex::new(opened));
    let gate = move || Gate(opened.clone());
    (gate, open)
}

struct Gate(std::sync::Arc<tokio::sync::Mutex<oneshot::Receiver<Response>>>);

impl Gate {
    async fn opened(self) -> Response {
        (&mut *self.0.lock().await).await.unwrap()
    }
}

pub(crate) fn streaming() -> (Response, Frames) {
    let (body, frames) = Stream::new();
    (Response::new(Body::new(body)), frames)
}

/// Routes in a scope.
fn scoped(locks: &LockManager, router: Router<LockManager>) -> Router {
    router
        .layer(LockScopeLayer::new())
        .with_state(locks.clone())
}

async fn status(app: &Router, path: &str) -> StatusCode {
    app.clone().oneshot(request(path)).await.unwrap().status()
}

/// Both of them open a scope.
fn scopes(locks: &LockManager, router: Router<LockManager>) -> [Router; 3] {
    let passing = LockLayer::by_path(locks.clone()).writes_only();
    [
        scoped(locks, router.clone()),
        router
            .clone()
            .route_layer(LockLayer::by_path(locks.clone()))
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

#[tokio::test]
async fn closure_in_scope_stays_locked() {
    for scope in 0..3 {
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
    for scope in 0..3 {
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

/// Lets the other tasks run until they wait for this one.
async fn until_idle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
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

#[tokio::test]
async fn loss_in_scope_aborts_handler() {
    for scope in 0..3 {
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
async fn max_hold_in_scope_aborts_handler() {
    let locks = LockManager::in_memory();
    let handler = async |_locked: LockedId| pending::<()>().await;
    let limit = LockScopeLayer::new().max_hold(Duration::from_secs(60));
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(limit)
        .with_state(locks.clone());
    let start = tokio::time::Instant::now();
    let response = in_time(app.oneshot(request("/7"))).await.unwrap();
    assert_eq!(kind(&response), ErrorKind::Lost);
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn lease_in_scope_is_not_renewed() {
    let locks = LockManager::in_memory();
    let handler = async |_locked: LockedId| pending::<()>().await;
    let app: Router = Router::new()
        .route("/{id}", post(handler))
        .layer(LockScopeLayer::new().lease(Duration::from_secs(10)))
        .with_state(locks.clone());
    let start = tokio::time::Instant::now();
    let response = in_time(app.oneshot(request("/7"))).await.unwrap();
    assert_eq!(kind(&response), ErrorKind::Lost);
    assert!(start.elapsed() < Duration::from_secs(11));
}

#[tokio::test(start_paused = true)]
async fn loss_during_one_poll_aborts_handler() {
    let locks = LockManager::in_memory();
    let handler = async |State(locks): State<LockManager>, _locked: LockedId| {
        assert!(locks.force_release(key("7")).await.unwrap());
        "written under a lost lock"
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let response = app.oneshot(request("/7")).await.unwrap();
    assert_eq!(kind(&response), ErrorKind::Lost);
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

#[tokio::test]
async fn settings_of_innermost_scope_apply() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(key("7")).await.unwrap();
    let no_wait = |status| LockScopeLayer::new().no_wait().status(status);
    let router = Router::new().route("/{id}", post(async |_locked: LockedId| ()));
    let app: Router = router
        .clone()
        .layer(no_wait(StatusCode::LOCKED))
        .layer(no_wait(StatusCode::IM_A_TEAPOT))
        .with_state(locks.clone());
    assert_eq!(status(&app, "/7").await, StatusCode::LOCKED);
    // A layer is a scope, too.
    let layer = LockLayer::by_path(locks.clone()).no_wait();
    let app: Router = router
        .layer(layer.status(StatusCode::LOCKED))
        .layer(no_wait(StatusCode::IM_A_TEAPOT))
        .with_state(locks.clone());
    assert_eq!(status(&app, "/7").await, StatusCode::LOCKED);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn wait_of_scope_bounds_locked() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key("7")).await.unwrap();
    let app: Router = Router::new()
        .route("/{id}", post(async |_locked: LockedId| ()))
        .layer(LockScopeLayer::new().wait(Duration::from_secs(2)))
        .with_state(locks.clone());
    let start = tokio::time::Instant::now();
    assert_eq!(status(&app, "/7").await, StatusCode::CONFLICT);
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test]
async fn rejection_of_locked_goes_through_on_reject() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key("7")).await.unwrap();
    let scope = LockScopeLayer::new().no_wait().on_reject(|rejection| {
        let mut response = rejection.to_response();
        *response.body_mut() = "later".to_owned();
        response
    });
    let app: Router = Router::new()
        .route("/{id}", post(async |_locked: LockedId| ()))
        .layer(scope)
        // The outer scope leaves the answer alone.
        .layer(LockScopeLayer::new().on_reject(|_| http::Response::new(String::new())))
        .with_state(locks.clone());
    let response = app.oneshot(request("/7")).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!(kind(&response), ErrorKind::Busy);
    assert_eq!(text(response).await, "later");
}

#[tokio::test]
async fn kept_guard_is_held_until_response_ends() {
    for scope in 0..3 {
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
async fn locked_guard_that_is_kept_is_held_once() {
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
async fn error_of_handler_is_rendered_for_client() {
    async fn handler(State(locks): State<LockManager>) -> Result<(), Error> {
        locks.acquire("busy").no_wait().await.map(drop)
    }
    let locks = LockManager::in_memory();
    let _guard = locks.acquire("busy").await.unwrap();
    let router = Router::new().route("/", post(handler).get(handler));
    let bare: Router = router.clone().with_state(locks.clone());
    let response = bare.clone().oneshot(request("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    assert_eq!(kind(&response), ErrorKind::Busy);

    let scope = LockScopeLayer::new().status(StatusCode::LOCKED);
    let layer = LockLayer::by_path(locks.clone()).status(StatusCode::LOCKED);
    let layered: Router = router.clone().layer(layer).with_state(locks.clone());
    for app in [router.layer(scope).with_state(locks.clone()), layered] {
        let plain = Request::post("/").header(ACCEPT, "text/plain");
        let plain = plain.body(Body::empty()).unwrap();
        let response = app.clone().oneshot(plain).await.unwrap();
        assert_eq!(response.status(), StatusCode::LOCKED);
        assert_eq!(kind(&response), ErrorKind::Busy);
        assert!(text(response).await.starts_with("Resource busy"));

        let head = Request::head("/").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(head).await.unwrap();
        assert_eq!(response.status(), StatusCode::LOCKED);
        assert_eq!(text(response).await, "");

        let grpc = Request::post("/").header(CONTENT_TYPE, "application/grpc");
        let grpc = grpc.body(Body::empty()).unwrap();
        let response = app.clone().oneshot(grpc).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["grpc-status"], "10");
    }
}

#[tokio::test]
async fn error_with_headers_and_status_keeps_them() {
    async fn with_cookie(State(locks): State<LockManager>) -> Response {
        let busy = locks.acquire("busy").no_wait().await.unwrap_err();
        ([("set-cookie", "a=b")], busy).into_response()
    }
    async fn with_status(State(locks): State<LockManager>) -> Response {
        let busy = locks.acquire("busy").no_wait().await.unwrap_err();
        (StatusCode::GONE, busy).into_response()
    }
    let locks = LockManager::in_memory();
    let _guard = locks.acquire("busy").await.unwrap();
    let app: Router = Router::new()
        .route("/cookie", post(with_cookie))
        .route("/status", post(with_status))
        .layer(LockScopeLayer::new().status(StatusCode::LOCKED))
        .with_state(locks.clone());
    let response = app.clone().oneshot(request("/cookie")).await.unwrap();
    assert_eq!(response.status(), StatusCode::LOCKED);
    assert_eq!(response.headers()["set-cookie"], "a=b");
    let types = response.headers().get_all(CONTENT_TYPE);
    assert_eq!(types.iter().count(), 1);
    assert_eq!(status(&app, "/status").await, StatusCode::GONE);
}

pub(crate) fn kind<B>(response: &http::Response<B>) -> ErrorKind {
    let rejection = response.extensions().get::<LockRejection>();
    rejection.expect("a rejection").kind()
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
