//! An error that a handler returns, in a scope or a layer.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER,
};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_http::compression::CompressionLayer;
use tower_lock::{Error, ErrorKind, LockLayer, LockManager, LockRejection, LockScopeLayer};

use super::support::{LockedId, key, kind, request, scopes, status, text};

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
        assert!(
            text(response)
                .await
                .starts_with("Lock failed in the handler")
        );

        let head = Request::head("/").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(head).await.unwrap();
        assert_eq!(response.status(), StatusCode::LOCKED);
        assert_eq!(text(response).await, "");

        let grpc = Request::post("/").header(CONTENT_TYPE, "application/grpc");
        let grpc = grpc.body(Body::empty()).unwrap();
        let response = app.clone().oneshot(grpc).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["grpc-status"], "10");
        assert!(!response.headers().contains_key("grpc-retry-pushback-ms"));
    }
}

/// A handler may have worked before its error. An extractor has not called it yet, and a handler can state the same.
#[tokio::test(start_paused = true)]
async fn error_of_handler_promises_nothing() {
    async fn half_done(State(locks): State<LockManager>) -> Result<(), Error> {
        locks.acquire(key("7")).no_wait().await.map(drop)
    }
    async fn not_begun(State(locks): State<LockManager>) -> Result<(), LockRejection> {
        Ok(half_done(State(locks)).await?)
    }
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key("7")).await.unwrap();
    let router = Router::new()
        .route("/half-done", post(half_done))
        .route("/not-begun", post(not_begun))
        .route("/locked/{id}", post(async |_: LockedId| ()));
    for app in scopes(&locks, router) {
        for (path, problem) in [
            ("/half-done", "lock-failed-in-handler"),
            ("/not-begun", "resource-busy"),
            ("/locked/7", "resource-busy"),
        ] {
            let response = app.clone().oneshot(request(path)).await.unwrap();
            assert_eq!(response.status(), StatusCode::CONFLICT, "{path}");
            let is_retried = response.headers().contains_key(RETRY_AFTER);
            assert_eq!(is_retried, problem == "resource-busy", "{path}");
            let rejection: &LockRejection = response.extensions().get().unwrap();
            assert_eq!(rejection.retry_after().is_some(), is_retried, "{path}");
            assert!(rejection.problem_type().ends_with(problem), "{path}");
            let body = text(response).await;
            assert!(body.contains(problem), "{body}");
            assert_eq!(body.contains("retry_after_ms"), is_retried, "{body}");
        }
    }
}

/// An inner layer compresses the rejection, which the scope renders again without compression.
#[tokio::test]
async fn compressed_error_is_rendered_uncompressed() {
    async fn handler(State(locks): State<LockManager>) -> Result<(), Error> {
        locks.acquire("busy").no_wait().await.map(drop)
    }
    let locks = LockManager::in_memory();
    let _guard = locks.acquire("busy").await.unwrap();
    let app: Router = Router::new()
        .route("/", post(handler))
        .layer(CompressionLayer::new())
        .layer(LockScopeLayer::new())
        .with_state(locks);
    let gzip = Request::post("/").header(ACCEPT_ENCODING, "gzip");
    let response = app
        .oneshot(gzip.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert!(!response.headers().contains_key(CONTENT_ENCODING));
    assert!(text(response).await.starts_with('{'));
}

/// Inner layers describe the body of the rejection, which the scope replaces.
#[tokio::test]
async fn headers_of_replaced_body_are_removed() {
    async fn handler(State(locks): State<LockManager>) -> Result<(), Error> {
        locks.acquire("busy").no_wait().await.map(drop)
    }
    async fn describe(mut response: Response) -> Response {
        for (name, value) in [
            ("accept-ranges", "bytes"),
            ("content-digest", "sha-256=:AAAA:"),
            ("content-language", "de"),
            ("content-security-policy", "default-src 'none'"),
            ("etag", "\"1\""),
            ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("set-cookie", "a=b"),
        ] {
            let value = value.parse().unwrap();
            response.headers_mut().insert(name, value);
        }
        response
    }
    let locks = LockManager::in_memory();
    let _guard = locks.acquire("busy").await.unwrap();
    let app: Router = Router::new()
        .route("/", post(handler))
        .layer(axum::middleware::map_response(describe))
        .layer(LockScopeLayer::new())
        .with_state(locks);
    let request = Request::post("/").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let mut names: Vec<_> = response
        .headers()
        .keys()
        .map(http::HeaderName::as_str)
        .collect();
    names.sort_unstable();
    let expected = [
        "cache-control",
        "content-length",
        "content-security-policy",
        "content-type",
        "set-cookie",
    ];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn error_of_handler_goes_through_on_reject() {
    async fn handler(State(locks): State<LockManager>) -> Result<&'static str, Error> {
        let _guard = locks.acquire("busy").no_wait().await?;
        Ok("done")
    }
    fn later(rejection: LockRejection) -> http::Response<String> {
        assert_eq!(rejection.kind(), ErrorKind::Busy);
        assert_eq!(rejection.status(), StatusCode::LOCKED);
        let response = http::Response::builder().status(StatusCode::GONE);
        response.body("later".to_owned()).unwrap()
    }
    let locks = LockManager::in_memory();
    let guard = locks.acquire("busy").await.unwrap();
    let router = Router::new().route("/", post(handler));
    let scope = LockScopeLayer::new().status(StatusCode::LOCKED);
    let layer = LockLayer::by_path(locks.clone()).status(StatusCode::LOCKED);
    let apps = [
        router.clone().layer(scope.on_reject(later)),
        router.clone().layer(layer.clone().on_reject(later)),
        // A layer that passes the request unlocked.
        router.layer(layer.skip(|_| true).on_reject(later)),
    ];
    // The outer scope leaves the response alone.
    let unused = LockScopeLayer::new().on_reject(|_| http::Response::new(String::new()));
    let apps: [Router; 3] = apps.map(|app| app.layer(unused.clone()).with_state(locks.clone()));
    for app in &apps {
        let response = app.clone().oneshot(request("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::GONE);
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        assert_eq!(kind(&response), ErrorKind::Busy);
        assert_eq!(text(response).await, "later");
    }
    drop(guard);
    for app in apps {
        assert_eq!(status(&app, "/").await, StatusCode::OK);
    }
}

#[tokio::test]
async fn error_keeps_headers_and_status() {
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
