//! The key of a request, and requests with equal and different keys.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use static_assertions::assert_impl_all;
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::keys::{ByValue, InvalidKey};
use tower_lock::service::{LockBody, LockService, ResponseFuture};
use tower_lock::{LockKey, LockKeys, LockLayer, LockManager, LockRejection, LockTarget};

use super::support::{Handler, show_held, text};
use crate::served::{Gate, Stream, assert_waits, is_locked, post};

assert_impl_all!(LockLayer<ByValue>: Clone, Send, Sync, std::fmt::Debug);

assert_impl_all!(LockService<Handler, ByValue>: Clone, Send, Sync, std::fmt::Debug);

assert_impl_all!(LockBody<Full<Bytes>>: Send, Unpin, std::fmt::Debug);

assert_impl_all!(LockBody<LockBody<Stream>>: Body, Send);

assert_impl_all!(ResponseFuture<BoxFuture<'static, ()>, Handler, String>: Send);

assert_impl_all!(LockRejection: Clone, Send, Sync, std::error::Error);

#[tokio::test]
async fn inner_service_sees_lock() {
    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(show_held));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(text(response).await, "/a");
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn requests_with_one_key_run_in_order() {
    let (gate, mut calls) = Gate::new();
    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone())
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let request = |number: &str| {
        let request = Request::post("/a").header("number", number);
        Box::pin(
            service
                .clone()
                .oneshot(request.body(String::new()).unwrap()),
        )
    };
    let (mut first, mut second, mut third) = (request("1"), request("2"), request("3"));
    assert_waits(&mut first).await;
    assert_waits(&mut second).await;
    assert_waits(&mut third).await;
    for (mut response, number) in [(first, "1"), (second, "2"), (third, "3")] {
        assert_waits(&mut response).await;
        let call = calls.recv().await.unwrap();
        assert_eq!(call.request.headers["number"], number);
        assert!(calls.try_recv().is_err(), "two run at once");
        call.finish();
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn requests_with_different_keys_run_concurrently() {
    let (gate, mut calls) = Gate::new();
    let service = LockLayer::by_path(LockManager::in_memory())
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let mut a = Box::pin(service.clone().oneshot(post("/a")));
    let mut b = Box::pin(service.oneshot(post("/b")));
    assert_waits(&mut a).await;
    assert_waits(&mut b).await;
    assert!(calls.try_recv().is_ok());
    assert!(calls.try_recv().is_ok());
}

#[tokio::test]
async fn request_without_key_passes_unlocked() {
    let service = LockLayer::by_fn(LockManager::in_memory(), |_| None::<LockKey>)
        .layer(service_fn(show_held));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(text(response).await, "unlocked");
}

#[tokio::test]
async fn only_safe_methods_pass_by_default() {
    let layer = LockLayer::by_path(LockManager::in_memory());
    let unknown = Method::from_bytes(b"PROPFIND").unwrap();
    for (method, by_default) in [
        (Method::GET, "unlocked"),
        (Method::HEAD, "unlocked"),
        (Method::OPTIONS, "unlocked"),
        (Method::TRACE, "unlocked"),
        (Method::POST, "/a"),
        (Method::PUT, "/a"),
        (Method::PATCH, "/a"),
        (Method::DELETE, "/a"),
        (Method::CONNECT, "/a"),
        (unknown, "/a"),
    ] {
        for (layer, expected) in [
            (layer.clone(), by_default),
            (layer.clone().all_methods(), "/a"),
            (layer.clone().permits(2), "/a"),
            (layer.clone().shared_reads().permits(2), "/a"),
        ] {
            let mut request = post("/a");
            *request.method_mut() = method.clone();
            let service = layer.layer(service_fn(show_held));
            let response = service.oneshot(request).await.unwrap();
            assert_eq!(text(response).await, expected, "{method}");
        }
    }
}

/// Another protocol follows such a GET, as it follows a `CONNECT` over HTTP/2.
#[tokio::test]
async fn get_that_asks_for_upgrade_is_locked() {
    let layer = LockLayer::by_path(LockManager::in_memory());
    for (method, lines, expected) in [
        (Method::GET, &["upgrade"][..], "/a"),
        (Method::GET, &["Upgrade"], "/a"),
        (Method::GET, &["keep-alive, Upgrade"], "/a"),
        (Method::GET, &["keep-alive", " UPGRADE ,x"], "/a"),
        (Method::GET, &["keep-alive"], "unlocked"),
        (Method::GET, &["upgrade-insecure-requests"], "unlocked"),
        (Method::HEAD, &["upgrade"], "unlocked"),
        (Method::OPTIONS, &["upgrade"], "unlocked"),
    ] {
        let mut request = post("/a");
        *request.method_mut() = method.clone();
        for line in lines {
            let line = line.parse().unwrap();
            request.headers_mut().append("connection", line);
        }
        let service = layer.clone().layer(service_fn(show_held));
        let shown = text(service.oneshot(request).await.unwrap()).await;
        assert_eq!(shown, expected, "{method} {lines:?}");
    }
}

#[tokio::test]
async fn each_constructor_locks_its_own_key() {
    #[derive(Clone)]
    struct Tenant(&'static str);

    impl LockTarget for Tenant {
        fn lock_keys(&self) -> LockKeys {
            LockKey::from_parts(["tenant", self.0]).into()
        }
    }

    let locks = LockManager::in_memory;
    let inner = || service_fn(show_held);
    let request = || {
        let mut request = post("/a%42?account=x+y");
        request.headers_mut().insert("x-id", "7".parse().unwrap());
        request.extensions_mut().insert(Tenant("t"));
        request
    };
    let by_path = LockLayer::by_path(locks()).layer(inner());
    let by_header = LockLayer::by_header(locks(), "X-Id").layer(inner());
    let by_query = LockLayer::by_query(locks(), "account").layer(inner());
    let by_extension = LockLayer::by_extension::<Tenant>(locks()).layer(inner());
    let by_closure = LockLayer::by_fn(locks(), |request| {
        LockKeys::from([request.method.as_str(), "all"])
    })
    .layer(inner());
    let answer = |response: Result<Response<_>, _>| text(response.unwrap());
    assert_eq!(answer(by_path.oneshot(request()).await).await, "/aB");
    assert_eq!(answer(by_header.oneshot(request()).await).await, "x-id:7");
    assert_eq!(
        answer(by_query.oneshot(request()).await).await,
        "account:x y"
    );
    assert_eq!(
        answer(by_extension.oneshot(request()).await).await,
        "tenant:t"
    );
    assert_eq!(
        answer(by_closure.oneshot(request()).await).await,
        "POST all"
    );
}

#[tokio::test]
async fn invalid_key_does_not_reach_inner_service() {
    let service = LockLayer::by_fn(LockManager::in_memory(), |_| {
        Err::<LockKey, _>(InvalidKey::Missing("thing".into()))
    })
    .layer(service_fn(|_: Request<String>| async {
        panic!("called without a lock");
        #[expect(unreachable_code, reason = "names the type")]
        Ok::<Response<String>, Infallible>(Response::default())
    }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn inner_service_error_passes_and_releases_lock() {
    #[derive(Debug, PartialEq)]
    struct Mine(u8);

    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(|_| async {
        Err::<Response<String>, _>(Mine(7))
    }));
    assert_eq!(service.oneshot(post("/a")).await.unwrap_err(), Mine(7));
    assert!(!is_locked(&locks));
}
