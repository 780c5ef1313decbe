//! The options that change which requests wait, and which run without their lock.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::backend::BackendErrorKind;
use tower_lock::keys::KeyExtractor;
use tower_lock::service::{ReadBody, Unlocked};
use tower_lock::{ErrorKind, Held, LockLayer, LockManager, LockRejection, OnUnavailable};

use crate::served::{in_time, path_key, post};
use crate::support::broken::broken;
use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Command, Simulated, is_free};

/// Serves a request by a handler that writes whether it holds the lock, or why not.
async fn serve<K: KeyExtractor>(
    layer: &LockLayer<K>,
    request: Request<String>,
) -> (StatusCode, HeaderMap, Option<ErrorKind>) {
    let service = layer.layer(service_fn(|request: Request<String>| async move {
        let unlocked = request.extensions().get::<Unlocked>();
        assert_ne!(
            request.extensions().get::<Held>().is_some(),
            unlocked.is_some()
        );
        let mut response = Response::new(String::new());
        if let Some(unlocked) = unlocked {
            response.extensions_mut().insert(unlocked.error().kind());
        }
        Ok::<_, Infallible>(response)
    }));
    let (head, _) = service.oneshot(request).await.unwrap().into_parts();
    let rejected = head.extensions.get().map(LockRejection::kind);
    let passed = head.extensions.get().copied();
    (head.status, head.headers, rejected.or(passed))
}

#[tokio::test(start_paused = true)]
async fn observe_only_runs_would_be_rejections_at_once() {
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_path(locks.clone()).observe_only();
    let start = Instant::now();
    let (status, _, unlocked) = serve(&layer, post("/a")).await;
    assert_eq!((status, unlocked), (StatusCode::OK, None));
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    let (status, headers, unlocked) = serve(&layer, post("/a")).await;
    assert_eq!((status, unlocked), (StatusCode::OK, Some(ErrorKind::Busy)));
    // Clients see no difference.
    assert!(headers.is_empty(), "{headers:?}");
    for (layer, kind) in [
        (
            LockLayer::by_path(broken(BackendErrorKind::Unavailable)),
            ErrorKind::Unavailable,
        ),
        (
            LockLayer::by_path(broken(BackendErrorKind::Misconfigured)),
            ErrorKind::Refused,
        ),
        (
            LockLayer::by_path(broken(BackendErrorKind::Conflict)),
            ErrorKind::KeyConflict,
        ),
    ] {
        let (status, _, unlocked) = serve(&layer.observe_only(), post("/a")).await;
        assert_eq!((status, unlocked), (StatusCode::OK, Some(kind)));
    }
    let no_key = LockLayer::by_header(locks, "x-id").observe_only();
    let (status, _, unlocked) = serve(&no_key, post("/a")).await;
    assert_eq!(
        (status, unlocked),
        (StatusCode::OK, Some(ErrorKind::InvalidKey))
    );
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn observe_only_does_not_abort_lost_handlers() {
    let layer = LockLayer::by_path(LockManager::in_memory())
        .max_hold(SECOND)
        .observe_only();
    let finished = AtomicU32::new(0);
    let service = layer.layer(service_fn(|request: Request<String>| {
        let finished = &finished;
        async move {
            let held = request.extensions().get::<Held>().unwrap();
            held.lost().await;
            tokio::time::sleep(SECOND).await;
            finished.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    let response = in_time(service.oneshot(post("/a"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(finished.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn unavailable_backend_passes_requests_by_option() {
    let unavailable = LockLayer::by_path(broken(BackendErrorKind::Unavailable));
    let passing = unavailable.clone().on_unavailable(OnUnavailable::Pass);
    let (status, headers, unlocked) = serve(&passing, post("/a")).await;
    assert_eq!(
        (status, unlocked),
        (StatusCode::OK, Some(ErrorKind::Unavailable))
    );
    assert_eq!(headers["tower-lock"], "unlocked");
    // Never by default.
    let (status, headers, _) = serve(&unavailable, post("/a")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!headers.contains_key("tower-lock"));
}

/// Returns how many acquires ten requests for one resource send.
async fn acquires_of_ten<K: KeyExtractor>(wire: &Simulated, layer: LockLayer<K>) -> usize {
    let before = wire.sent(Command::Acquire);
    for _ in 0..10 {
        assert_eq!(serve(&layer, post("/a")).await.0, StatusCode::OK);
        tokio::time::sleep(5 * MS).await;
    }
    tokio::time::sleep(SECOND).await;
    assert!(is_free(wire, path_key("/a").as_str()).await);
    wire.sent(Command::Acquire) - before
}

#[tokio::test(start_paused = true)]
async fn kept_lease_serves_next_requests() {
    let wire = Simulated::new(MS);
    let manager = |time| {
        let locks = LockManager::builder(wire.clone()).keep_released(time);
        locks.build().unwrap()
    };
    let layer = |time| LockLayer::by_path(manager(time));
    assert_eq!(acquires_of_ten(&wire, layer(Duration::ZERO)).await, 10);
    let kept = layer(Duration::ZERO).keep_released(100 * MS);
    assert_eq!(acquires_of_ten(&wire, kept).await, 2);
    assert_eq!(acquires_of_ten(&wire, layer(100 * MS)).await, 2);
    let off = layer(100 * MS).keep_released(Duration::ZERO);
    assert_eq!(acquires_of_ten(&wire, off).await, 10);
}

#[test]
#[should_panic(expected = "invalid `keep_released`")]
fn keeping_for_more_than_100_ms_panics() {
    drop(LockLayer::by_path(LockManager::in_memory()).keep_released(101 * MS));
}

/// The handler of a request that must not carry the [`Held`] of the outer layer.
async fn without_held<B>(request: Request<B>) -> Result<Response<String>, Infallible> {
    assert!(request.extensions().get::<Unlocked>().is_some());
    assert!(request.extensions().get::<Held>().is_none());
    Ok(Response::new(String::new()))
}

/// The lock of an outer layer would tell the handler that it has that of the inner one, too.
#[tokio::test(start_paused = true)]
async fn unlocked_request_has_no_outer_held() {
    async fn run<K: KeyExtractor>(inner: LockLayer<K>) {
        let outer = LockLayer::by_path(LockManager::in_memory());
        let service = outer.layer(inner.layer(service_fn(without_held::<String>)));
        assert!(
            service
                .oneshot(post("/a"))
                .await
                .unwrap()
                .status()
                .is_success()
        );
    }
    let busy = LockManager::in_memory();
    let _guard = busy.acquire(path_key("/a")).await.unwrap();
    let unavailable = LockLayer::by_path(broken(BackendErrorKind::Unavailable));
    run(unavailable.on_unavailable(OnUnavailable::Pass)).await;
    run(LockLayer::by_header(busy.clone(), "x-id").observe_only()).await;
    run(LockLayer::by_path(busy.clone()).observe_only()).await;

    let body_first = LockLayer::by_path(busy)
        .read_body_first(1, SECOND)
        .observe_only();
    let inner = body_first.layer(service_fn(without_held::<ReadBody<Full<Bytes>>>));
    let outer = LockLayer::by_path(LockManager::in_memory()).layer(inner);
    let too_large = Request::post("/a").body(Full::from("12")).unwrap();
    assert!(
        outer
            .oneshot(too_large)
            .await
            .unwrap()
            .status()
            .is_success()
    );
}

/// Settings of requests come before and after it.
#[test]
fn body_first_layer_takes_all_settings() {
    let layer = LockLayer::by_path(LockManager::in_memory()).read_body_first(1, SECOND);
    let layer = layer.name("orders").wait(SECOND);
    assert!(format!("{layer:?}").contains("orders"));
}

#[tokio::test(start_paused = true)]
async fn only_unavailability_passes_unlocked() {
    let pass = |locks: &LockManager| {
        LockLayer::by_path(locks.clone())
            .no_wait()
            .on_unavailable(OnUnavailable::Pass)
    };
    let busy = LockManager::in_memory();
    let _guard = busy.acquire(path_key("/a")).await.unwrap();
    let stopped = LockManager::in_memory();
    stopped.shutdown(Duration::ZERO).await;
    for (layer, kind) in [
        (pass(&busy), ErrorKind::Busy),
        (pass(&stopped), ErrorKind::ShuttingDown),
        (
            pass(&broken(BackendErrorKind::Misconfigured)),
            ErrorKind::Refused,
        ),
        (
            pass(&broken(BackendErrorKind::Conflict)),
            ErrorKind::KeyConflict,
        ),
    ] {
        let (status, headers, rejected) = serve(&layer, post("/a")).await;
        assert!(!status.is_success(), "{kind:?}: {status}");
        assert_eq!(rejected, Some(kind));
        assert!(!headers.contains_key("tower-lock"));
    }
    let free = pass(&LockManager::in_memory());
    let (status, headers, unlocked) = serve(&free, post("/a")).await;
    assert_eq!((status, unlocked), (StatusCode::OK, None));
    assert!(headers.is_empty(), "{headers:?}");
}
