//! Acquires of a handler with its scope.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use http::StatusCode;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_lock::backend::Mode;
use tower_lock::{
    Error, ErrorKind, Held, LockKey, LockLayer, LockManager, LockScope, LockScopeLayer, Locked,
    Memory,
};

use super::support::{LockedId, gate, key, kind, request, scoped, scopes, status, streaming, text};
use crate::served::{assert_waits, is_locked};

#[tokio::test]
async fn acquired_lock_is_held_until_response_ends() {
    for scope in 0..4 {
        let locks = LockManager::in_memory();
        let (gate, open) = gate();
        let handler = async move |State(locks): State<LockManager>, scope: LockScope| {
            let held = scope.acquire(&locks, "mine").await.unwrap();
            assert!(held.is_held());
            drop(scope);
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

/// Returns the number of holds of the key of the path.
async fn again(scope: &LockScope, locks: &LockManager) -> u32 {
    let held = scope.acquire(locks, key("7")).no_wait().await.unwrap();
    held.hold_count()
}

#[tokio::test]
async fn acquire_re_enters_locks_of_its_request() {
    let locks = LockManager::in_memory();
    let by_id = LockLayer::by_fn(locks.clone(), |_| key("7"));
    let of_layer = post(
        async |State(locks): State<LockManager>, scope: LockScope, held: Held| {
            assert_eq!(again(&scope, &locks).await, 2);
            assert_eq!(again(&scope, &locks).await, 3);
            assert_eq!(held.hold_count(), 3);
        },
    );
    let scope_first = post(
        async |State(locks): State<LockManager>, scope: LockScope, Locked(_, guard): LockedId| {
            assert_eq!(again(&scope, &locks).await, 2);
            assert_eq!(guard.hold_count(), 2);
        },
    );
    let locked_first = post(
        async |State(locks): State<LockManager>, Locked(_, guard): LockedId, scope: LockScope| {
            assert_eq!(again(&scope, &locks).await, 2);
            assert_eq!(guard.hold_count(), 2);
        },
    );
    let concurrent = post(async |State(locks): State<LockManager>, scope: LockScope| {
        let acquires = tokio::join!(again(&scope, &locks), again(&scope, &locks));
        assert!([(1, 2), (2, 2)].contains(&acquires), "{acquires:?}");
    });
    let of_program = post(async |State(locks): State<LockManager>, scope: LockScope| {
        assert_eq!(again(&scope, &locks).await, 2);
    });
    let guard = locks.acquire(key("7")).await.unwrap();
    let owner = guard.owner();
    let app = scoped(&locks, Router::new().route("/{id}", of_program));
    assert_eq!(
        status(&app.layer(Extension(owner)), "/7").await,
        StatusCode::OK
    );
    guard.release().await.unwrap();
    for router in [
        Router::new().route("/{id}", of_layer).layer(by_id),
        Router::new().route("/{id}", scope_first),
        Router::new().route("/{id}", locked_first),
        Router::new().route("/{id}", concurrent),
    ] {
        assert_eq!(status(&scoped(&locks, router), "/7").await, StatusCode::OK);
        assert!(!is_locked(&locks));
    }
}

/// A middleware acquires with the scope, and a layer and an extractor inside re-enter.
#[tokio::test]
async fn locks_inside_re_enter_acquire_of_middleware() {
    async fn acquires(State(locks): State<LockManager>, request: Request, next: Next) -> Response {
        let scope = LockScope::of(request.extensions()).unwrap();
        scope.acquire(&locks, key("7")).no_wait().await.unwrap();
        next.run(request).await
    }
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_fn(locks.clone(), |_| key("7")).no_wait();
    let app = Router::new()
        .route(
            "/layer",
            post(async |held: Held| assert_eq!(held.hold_count(), 2)).layer(layer),
        )
        .route(
            "/{id}",
            post(async |Locked(_, guard): LockedId| assert_eq!(guard.hold_count(), 2)),
        )
        .layer(from_fn_with_state(locks.clone(), acquires))
        .layer(LockScopeLayer::new().no_wait())
        .with_state(locks.clone());
    assert_eq!(status(&app, "/layer").await, StatusCode::OK);
    assert_eq!(status(&app, "/7").await, StatusCode::OK);
    assert!(!is_locked(&locks));
}

#[tokio::test(start_paused = true)]
async fn settings_of_scope_are_defaults_of_acquire() {
    let locks = LockManager::in_memory();
    let handler = async |State(locks): State<LockManager>, scope: LockScope| {
        let start = tokio::time::Instant::now();
        let busy = scope.acquire(&locks, "busy").await.unwrap_err();
        assert_eq!(
            (busy.kind(), start.elapsed().as_secs()),
            (ErrorKind::Busy, 2)
        );
        let busy = scope.acquire(&locks, "busy").wait(Duration::from_secs(3));
        assert!(busy.await.is_err());
        assert_eq!(start.elapsed().as_secs(), 5);
        assert!(scope.acquire(&locks, "busy").no_wait().await.is_err());
        assert_eq!(start.elapsed().as_secs(), 5);
        let shared = scope.acquire(&locks, "read").shared().await.unwrap();
        assert_eq!(shared.mode(), Mode::Shared);
        let permit = scope.acquire(&locks, "some").permits(2).await.unwrap();
        assert_eq!(permit.mode(), Mode::Permit);
        let short = scope
            .acquire(&locks, "short")
            .max_hold(Duration::from_secs(1));
        let short = short.lease(Duration::from_secs(20)).await.unwrap();
        short.lost().await;
        assert_eq!(start.elapsed().as_secs(), 6);
    };
    let _guard = locks.acquire("busy").await.unwrap();
    let scope = LockScopeLayer::new()
        .wait(Duration::from_secs(2))
        .on_lost(tower_lock::OnLost::Continue);
    let app = Router::new()
        .route("/", post(handler))
        .layer(scope)
        .with_state(locks.clone());
    assert_eq!(status(&app, "/").await, StatusCode::OK);
}

#[tokio::test]
async fn loss_of_acquired_lock_aborts_handler() {
    let locks = LockManager::in_memory();
    let handler = async |State(locks): State<LockManager>, scope: LockScope| {
        scope.acquire(&locks, "mine").await.unwrap();
        std::future::pending::<()>().await;
    };
    let app = scoped(&locks, Router::new().route("/{id}", post(handler)));
    let mut response = app.oneshot(request("/7"));
    assert_waits(&mut response).await;
    assert!(locks.force_release("mine").await.unwrap());
    assert_eq!(kind(&response.await.unwrap()), ErrorKind::Lost);
}

#[tokio::test]
async fn acquire_after_response_is_released_at_once() {
    let locks = LockManager::in_memory();
    let (leak, mut leaked) = tokio::sync::mpsc::unbounded_channel();
    let handler = async move |scope: LockScope| leak.send(scope).unwrap();
    let app = scoped(&locks, Router::new().route("/", post(handler)));
    assert_eq!(status(&app, "/").await, StatusCode::OK);
    let scope: LockScope = leaked.recv().await.unwrap();
    let held = scope.acquire(&locks, "mine").await.unwrap();
    assert!(!held.is_held());
    assert!(!is_locked(&locks));
}

/// Two managers have an owner each for one request, in a layer and in a handler.
#[tokio::test(start_paused = true)]
async fn second_manager_waits_for_its_own_request() {
    let store = Memory::new();
    let manager = || LockManager::builder(store.clone()).build().unwrap();
    let (first, second) = (manager(), manager());
    let by_id = |locks: &LockManager| LockLayer::by_fn(locks.clone(), |_| key("7"));
    let again = async |State(locks): State<LockManager>, scope: LockScope| {
        scope.acquire(&locks, key("7")).await.map(drop)
    };
    let handler = Router::new().route("/", post(again)).layer(by_id(&first));
    let layers = Router::new()
        .route("/", post(async || ()))
        .layer(by_id(&second))
        .layer(by_id(&first));
    for (app, problem) in [
        (handler, "lock-failed-in-handler"),
        (layers, "resource-busy"),
    ] {
        let start = tokio::time::Instant::now();
        let app: Router = app.with_state(second.clone());
        let response = app.oneshot(request("/")).await.unwrap();
        assert_eq!(kind(&response), ErrorKind::Busy);
        assert_eq!(start.elapsed().as_secs(), 5);
        assert!(text(response).await.contains(problem));
        assert!(!is_locked(&first));
    }
}

/// Returns the text of the error of an acquire that waits for this guard.
async fn busy(locks: &LockManager, key: LockKey) -> String {
    let error: Error = locks.acquire(key).no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    error.to_string()
}

#[tokio::test]
async fn busy_error_names_remedy_for_owner_of_process() {
    let store = Memory::new();
    let manager = || LockManager::builder(store.clone()).build().unwrap();
    let (locks, other) = (manager(), manager());
    let _guard = locks.acquire(key("7")).await.unwrap();
    let here = busy(&locks, key("7")).await;
    let remedy = "another owner of this process; in a handler use `LockScope::acquire`";
    assert!(here.contains(remedy), "{here}");
    let elsewhere = busy(&other, key("7")).await;
    assert_eq!(elsewhere, "lock is held by another owner");
}
