//! The response to a request without its lock: every row of the table, in every form.

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::backend::BackendErrorKind;
use tower_lock::keys::KeyExtractor;
use tower_lock::{ErrorKind, LockGuard, LockLayer, LockManager, LockRejection, Memory};

use crate::served::{assert_waits, in_time, path_key, post};
use crate::support::broken::broken;

/// The response of a layer around a handler that must not run.
async fn answer<K: KeyExtractor>(layer: &LockLayer<K>, request: Request<String>) -> Answer {
    let service = layer.layer(service_fn(|_: Request<String>| async {
        Ok::<_, Infallible>(Response::new("handled".to_owned()))
    }));
    Answer::of(service.oneshot(request).await.unwrap()).await
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
    rejection: LockRejection,
}

impl Answer {
    async fn of<B: http_body::Body<Error: std::fmt::Debug>>(response: Response<B>) -> Self {
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let rejection = head.extensions.get::<LockRejection>();
        Self {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
            rejection: rejection.expect("a typed rejection").clone(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Checks one row of the table.
    #[track_caller]
    fn assert_row(&self, status: u16, retry_after: bool, problem: &str, kind: ErrorKind) {
        assert_eq!(self.status, status);
        assert_eq!(self.rejection.status(), status);
        assert_eq!(self.rejection.kind(), kind);
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(self.header("cache-control"), Some("no-store"));
        let json = self.json();
        let uri = json["type"].as_str().unwrap();
        let uri: http::Uri = uri.parse().expect("an absolute URI");
        assert_eq!(uri.host(), Some("docs.rs"));
        // A parsed URI has no fragment.
        assert!(json["type"].to_string().ends_with(&format!("#{problem}\"")));
        assert_eq!(json["type"], self.rejection.problem_type());
        assert_eq!(json["status"], status);
        assert!(json["title"].is_string());
        assert!(json["detail"].is_string());
        let seconds = self
            .header("retry-after")
            .map(|value| value.parse::<u64>().unwrap());
        assert_eq!(seconds.is_some(), retry_after);
        assert_eq!(json.get("retry_after_ms").is_some(), retry_after);
        // A request that can wait receives the time that it waited.
        assert_eq!(json.get("waited_ms").is_some(), retry_after);
        assert_eq!(self.rejection.waited().is_some(), retry_after);
        if let Some(seconds) = seconds {
            let millis = json["retry_after_ms"].as_u64().unwrap();
            assert_eq!(seconds, millis.div_ceil(1000).max(1));
            assert!((1..=3).contains(&seconds), "{seconds}");
        }
    }
}

async fn hold(locks: &LockManager, path: &str) -> LockGuard {
    locks.acquire(path_key(path)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn busy_resource_is_409_after_wait() {
    let locks = LockManager::in_memory();
    let _guard = hold(&locks, "/a").await;
    let layer = LockLayer::by_path(locks).wait(Duration::from_millis(250));
    let answer = answer(&layer, post("/a")).await;
    answer.assert_row(409, true, "resource-busy", ErrorKind::Busy);
    let waited = answer.json()["waited_ms"].as_u64().unwrap();
    assert!((250..=260).contains(&waited), "{waited}");
    assert!(answer.rejection.waited().is_some());
}

#[tokio::test]
async fn busy_resource_is_409_after_single_attempt() {
    let locks = LockManager::in_memory();
    let _guard = hold(&locks, "/a").await;
    let answer = answer(&LockLayer::by_path(locks).no_wait(), post("/a")).await;
    answer.assert_row(409, true, "resource-busy", ErrorKind::Busy);
}

#[tokio::test]
async fn busy_resource_is_423_by_option() {
    let locks = LockManager::in_memory();
    let _guard = hold(&locks, "/a").await;
    let layer = LockLayer::by_path(locks)
        .no_wait()
        .status(StatusCode::LOCKED);
    answer(&layer, post("/a"))
        .await
        .assert_row(423, true, "resource-busy", ErrorKind::Busy);
    // The setting affects only this status.
    let answer = answer(&layer, post("/%zz")).await;
    answer.assert_row(400, false, "lock-key-invalid", ErrorKind::InvalidKey);
}

#[tokio::test]
async fn full_queue_of_key_is_429() {
    let locks = LockManager::builder(Memory::new())
        .max_waiters_per_key(1)
        .build()
        .unwrap();
    let _guard = hold(&locks, "/a").await;
    let mut waiter = locks.acquire(path_key("/a")).into_future();
    assert_waits(&mut waiter).await;
    let answer = answer(&LockLayer::by_path(locks), post("/a")).await;
    answer.assert_row(429, true, "too-many-waiters", ErrorKind::TooManyWaiters);
}

#[tokio::test]
async fn full_queue_of_manager_is_503() {
    let locks = LockManager::builder(Memory::new())
        .max_waiters(1)
        .build()
        .unwrap();
    let _guards = (hold(&locks, "/a").await, hold(&locks, "/b").await);
    let mut waiter = locks.acquire(path_key("/a")).into_future();
    assert_waits(&mut waiter).await;
    let answer = answer(&LockLayer::by_path(locks), post("/b")).await;
    answer.assert_row(503, true, "lock-overload", ErrorKind::Overloaded);
}

#[tokio::test(start_paused = true)]
async fn unreachable_backend_is_503_without_handler() {
    let layer = LockLayer::by_path(broken(BackendErrorKind::Unavailable));
    let answer = answer(&layer, post("/a")).await;
    answer.assert_row(503, true, "lock-unavailable", ErrorKind::Unavailable);
    assert!(!answer.body.contains("on purpose"));
    // The source of the error is for the operator only.
    let detail = "locks cannot be acquired at the moment; this is temporary";
    assert_eq!(answer.json()["detail"], detail);
}

#[tokio::test(start_paused = true)]
async fn misconfigured_backend_is_503_without_retry_after() {
    let layer = LockLayer::by_path(broken(BackendErrorKind::Misconfigured));
    let answer = answer(&layer, post("/a")).await;
    answer.assert_row(503, false, "lock-unavailable", ErrorKind::Refused);
    let detail = "the lock backend rejects this server; report this to its operator";
    assert_eq!(answer.json()["detail"], detail);
}

#[tokio::test(start_paused = true)]
async fn foreign_value_at_key_is_500() {
    let layer = LockLayer::by_path(broken(BackendErrorKind::Conflict));
    let answer = answer(&layer, post("/a")).await;
    answer.assert_row(500, false, "lock-key-conflict", ErrorKind::KeyConflict);
}

#[tokio::test]
async fn shutdown_of_queued_request_is_503() {
    let locks = LockManager::in_memory();
    let guard = hold(&locks, "/a").await;
    let layer = LockLayer::by_path(locks.clone());
    let mut queued = Box::pin(answer(&layer, post("/a")));
    assert!(futures_util::poll!(&mut queued).is_pending());
    let shutdown = locks.shutdown(Duration::ZERO);
    let (answer, _) = tokio::join!(queued, shutdown);
    answer.assert_row(503, true, "shutting-down", ErrorKind::ShuttingDown);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn loss_before_head_is_500_without_retry_after() {
    let layer = LockLayer::by_path(LockManager::in_memory()).max_hold(Duration::from_secs(1));
    let service = layer.layer(service_fn(|_: Request<String>| {
        std::future::pending::<Result<Response<String>, Infallible>>()
    }));
    let response = in_time(service.oneshot(post("/a"))).await.unwrap();
    let answer = Answer::of(response).await;
    answer.assert_row(500, false, "lock-lost", ErrorKind::Lost);
}

#[tokio::test]
async fn missing_or_invalid_key_is_400_and_named() {
    let locks = LockManager::in_memory();
    let by_header = LockLayer::by_header(locks.clone(), "x-id");
    let by_query = LockLayer::by_query(locks.clone(), "id");
    let by_path = LockLayer::by_path(locks);
    let mut twice = post("/");
    for value in ["7", "8"] {
        twice.headers_mut().append("x-id", value.parse().unwrap());
    }
    let mut empty = post("/");
    empty.headers_mut().insert("x-id", "".parse().unwrap());
    for (answer, what) in [
        (answer(&by_header, post("/")).await, "header `x-id`"),
        (
            answer(&by_header, twice).await,
            "more than one header `x-id`",
        ),
        (
            answer(&by_header, empty).await,
            "header `x-id` of the request is empty",
        ),
        (answer(&by_query, post("/")).await, "query parameter `id`"),
        (
            answer(&by_query, post("/?id=%FF")).await,
            "is not percent-encoded UTF-8",
        ),
        (
            answer(&by_query, post("/?id=1&id=2")).await,
            "more than one",
        ),
        (answer(&by_path, post("/%zz")).await, "path"),
        (
            answer(&by_path, post("/a/%2e%2e")).await,
            "send the resolved path",
        ),
    ] {
        answer.assert_row(400, false, "lock-key-invalid", ErrorKind::InvalidKey);
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains(what), "{detail}");
    }
}

#[tokio::test]
async fn excessive_reentrancy_is_500() {
    let locks = LockManager::in_memory();
    let first = hold(&locks, "/a").await;
    let mut guards = Vec::new();
    for _ in 1..64 {
        let again = locks.acquire(path_key("/a")).owner(first.owner());
        guards.push(again.await.unwrap());
    }
    let mut request = post("/a");
    request.extensions_mut().insert(first.owner());
    let answer = answer(&LockLayer::by_path(locks), request).await;
    answer.assert_row(500, false, "lock-reentrancy", ErrorKind::ReentrancyLimit);
}

/// A layer whose only resource is busy.
async fn busy() -> (LockLayer<tower_lock::keys::ByPath>, LockGuard) {
    let locks = LockManager::in_memory();
    let guard = hold(&locks, "/secret").await;
    (LockLayer::by_path(locks).no_wait(), guard)
}

#[tokio::test]
async fn responses_contain_no_key_or_owner() {
    let (layer, guard) = busy().await;
    let owner = guard.owner().to_string();
    let (manager, _) = owner.split_once(':').unwrap();
    for (name, value) in [
        ("accept", "application/json"),
        ("accept", "text/plain"),
        ("content-type", "application/grpc"),
    ] {
        let mut request = post("/secret");
        request.headers_mut().insert(name, value.parse().unwrap());
        let answer = answer(&layer, request).await;
        let seen = format!("{:?} {} {}", answer.headers, answer.body, answer.rejection);
        assert!(!seen.contains("secret"), "{seen}");
        assert!(!seen.contains(manager), "{seen}");
    }
}

#[tokio::test]
async fn client_accepting_text_receives_text() {
    let (layer, _guard) = busy().await;
    let mut request = post("/secret");
    request
        .headers_mut()
        .insert("accept", "text/plain".parse().unwrap());
    let answer = answer(&layer, request).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(answer.header("retry-after").is_some());
    assert!(
        answer.body.starts_with("Resource busy: "),
        "{}",
        answer.body
    );
    assert!(answer.body.contains("temporary"));
}

#[tokio::test]
async fn head_request_receives_headers_without_body() {
    let (layer, _guard) = busy().await;
    let mut request = post("/secret");
    *request.method_mut() = Method::HEAD;
    let answer = answer(&layer.all_methods(), request).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.body, "");
}

#[tokio::test(start_paused = true)]
async fn grpc_request_receives_trailers_only() {
    let full = LockManager::builder(Memory::new())
        .max_waiters_per_key(1)
        .build()
        .unwrap();
    let _full = hold(&full, "/a").await;
    // The waits of the other cases pass.
    let mut waiter = full.acquire(path_key("/a")).wait_forever().into_future();
    assert_waits(&mut waiter).await;
    let busy = LockManager::in_memory();
    let _busy = hold(&busy, "/a").await;
    let no_permit = LockManager::in_memory();
    let permit = no_permit.acquire(path_key("/a")).permits(1);
    let _permit = permit.await.unwrap();
    for (layer, path, code) in [
        (LockLayer::by_path(busy).no_wait(), "/a", "10"),
        (
            LockLayer::by_path(broken(BackendErrorKind::Unavailable)),
            "/a",
            "14",
        ),
        (LockLayer::by_path(full), "/a", "8"),
        (
            LockLayer::by_path(no_permit).permits(1).no_wait(),
            "/a",
            "8",
        ),
        (
            LockLayer::by_path(broken(BackendErrorKind::Conflict)),
            "/a",
            "13",
        ),
        (LockLayer::by_path(LockManager::in_memory()), "/%zz", "3"),
    ] {
        let mut request = post(path);
        let grpc = "application/grpc+proto".parse().unwrap();
        request.headers_mut().insert("content-type", grpc);
        let answer = answer(&layer, request).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("content-type"), Some("application/grpc"));
        assert_eq!(answer.header("grpc-status"), Some(code));
        assert!(
            answer
                .header("grpc-message")
                .is_some_and(|message| !message.is_empty())
        );
        let pushback = answer.header("grpc-retry-pushback-ms");
        let retry_after = answer
            .rejection
            .retry_after()
            .map(|it| it.as_millis().to_string());
        assert_eq!(pushback.map(ToOwned::to_owned), retry_after);
        assert_eq!(pushback.is_some(), ["8", "10", "14"].contains(&code));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.body, "");
    }
}

#[tokio::test]
async fn on_reject_replaces_response_and_keeps_reason() {
    let (layer, _guard) = busy().await;
    let layer = layer.on_reject(|rejection| {
        assert_eq!(rejection.kind(), ErrorKind::Busy);
        Response::builder()
            .status(StatusCode::IM_A_TEAPOT)
            .header("x-mine", "1")
            .body("mine".to_owned())
            .unwrap()
    });
    let answer = answer(&layer, post("/secret")).await;
    assert_eq!(answer.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(answer.header("x-mine"), Some("1"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.body, "mine");
    assert_eq!(answer.rejection.status(), StatusCode::CONFLICT);
}

#[tokio::test]
async fn on_reject_cannot_lose_status_or_retry_after() {
    fn empty(_: LockRejection) -> Response<String> {
        Response::new("mine".to_owned())
    }
    fn redirects(_: LockRejection) -> Response<String> {
        let response = Response::builder().status(StatusCode::SEE_OTHER);
        response.body(String::new()).unwrap()
    }
    fn set(_: LockRejection) -> Response<String> {
        let response = Response::builder().status(StatusCode::GONE);
        let response = response.header("retry-after", "77");
        let response = response.header("grpc-retry-pushback-ms", "77");
        response.body(String::new()).unwrap()
    }
    let own = |rejection: LockRejection| rejection.to_response();
    for (on_reject, http, grpc, is_set) in [
        // A client of gRPC does not take it for a success either.
        (empty as fn(LockRejection) -> _, 409, 409, false),
        (redirects, 409, 409, false),
        (set, 410, 410, true),
        (own, 409, 200, false),
    ] {
        for (content_type, status, name, unit) in [
            ("text/plain", http, "retry-after", 1000),
            ("application/grpc", grpc, "grpc-retry-pushback-ms", 1),
        ] {
            let (layer, _guard) = busy().await;
            let mut request = post("/secret");
            let content_type = content_type.parse().unwrap();
            request.headers_mut().insert("content-type", content_type);
            let answer = answer(&layer.on_reject(on_reject), request).await;
            assert_eq!(answer.status, status);
            let own = answer.rejection.retry_after().unwrap().as_millis();
            let expected = if is_set { 77 } else { own.div_ceil(unit) };
            assert_eq!(answer.header(name), Some(&*expected.to_string()));
            assert_eq!(answer.rejection.status(), StatusCode::CONFLICT);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_rejections_spread_retry_after() {
    let (layer, _guard) = busy().await;
    let mut times = std::collections::HashSet::new();
    for _ in 0..20 {
        times.insert(
            answer(&layer, post("/secret"))
                .await
                .rejection
                .retry_after(),
        );
    }
    // 20 draws of about 20 values: about 13 differ, and rarely 10 or fewer.
    assert!(times.len() > 4, "{times:?}");
}

#[tokio::test]
async fn debug_of_error_has_no_wrapper() {
    let locks = broken(BackendErrorKind::Conflict);
    let error = locks.acquire("k").await.unwrap_err();
    let text = format!("{error:?}");
    assert!(
        text.starts_with("Error { kind: KeyConflict, source: "),
        "{text}"
    );
    assert!(!text.contains("Repr"), "{text}");
}
