//! Headers of HTTP/1.1 that HTTP/2 has in another form, or not at all.

use axum::Router;
use axum::body::Body;
use axum::routing::{any, put};
use http::request::Builder;
use http::{Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;
use tower_lock::keys::KeyExtractor;
use tower_lock::{LockKey, LockLayer, LockManager};

use super::{VERSIONS, send, serve};

/// Returns the statuses of a request over both versions, while another owner holds the lock of each of the keys that
/// `keys` makes of the address of the server.
async fn statuses<K: KeyExtractor + Send + Sync + 'static>(
    layer: impl Fn(LockManager) -> LockLayer<K>,
    key: impl Fn(String) -> LockKey,
    request: impl Fn(Builder) -> Builder,
) -> [u16; 2] {
    let locks = LockManager::in_memory();
    let layer = layer(locks.clone()).no_wait();
    let address = serve(Router::new().route("/", put(async || "ran").layer(layer))).await;
    let _holder = locks.acquire(key(address.to_string())).await.unwrap();
    let mut statuses = [0; 2];
    for (version, status) in VERSIONS.into_iter().zip(&mut statuses) {
        let request = request(Request::put(format!("http://{address}/")));
        let request = request.body(Body::empty()).unwrap();
        *status = send(version, request).await.0.as_u16();
    }
    statuses
}

fn host(address: String) -> LockKey {
    LockKey::from_parts(["host".to_owned(), address])
}

#[tokio::test]
async fn host_is_one_lock_over_both_versions() {
    let same = |request| request;
    assert_eq!(statuses(LockLayer::by_host, host, same).await, [409; 2]);
    let by_header = |locks| LockLayer::by_header(locks, "Host");
    assert_eq!(statuses(by_header, host, same).await, [409; 2]);
}

/// A client of HTTP/2 can also send the header.
#[tokio::test]
async fn host_in_header_must_be_that_of_target() {
    let header = |request: Builder| request.header("host", "other.example.org");
    let other = |_| LockKey::from_parts(["host", "other.example.org"]);
    assert_eq!(
        statuses(LockLayer::by_host, other, header).await,
        [409, 400]
    );
}

#[tokio::test]
async fn headers_that_http2_lacks_are_400_there() {
    let by = |name: &'static str| move |locks| LockLayer::by_header(locks, name);
    let key = |name: &'static str, value: &'static str| {
        move |_: String| LockKey::from_parts([name, value])
    };
    // The client removes it, as RFC 9113 requires.
    let kept = |request: Builder| request.header("connection", "keep-alive");
    let connection = key("connection", "keep-alive");
    assert_eq!(
        statuses(by("connection"), connection, kept).await,
        [409, 400]
    );
    let cookie = |request: Builder| request.header("cookie", "a=1; b=2");
    let whole = key("cookie", "a=1; b=2");
    assert_eq!(statuses(by("cookie"), whole, cookie).await, [409; 2]);
    // Only over HTTP/2 may a client split them.
    let split = |request: Builder| request.header("cookie", "a=1").header("cookie", "b=2");
    let [_, http2] = statuses(by("cookie"), whole, split).await;
    assert_eq!(http2, 400);
}

/// Without a host, no lock is due, and none of the built-in sources passes the request.
#[tokio::test]
async fn http10_without_host_is_400() {
    let layer = LockLayer::by_host(LockManager::in_memory());
    let address = serve(Router::new().route("/", put(async || "ran").layer(layer))).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"PUT / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.0 400"), "{response}");
    assert!(response.contains("the request has no host"), "{response}");
}

/// A WebSocket is a GET over HTTP/1.1 that asks for an upgrade, and a `CONNECT` with a path over HTTP/2.
#[tokio::test]
async fn websocket_is_locked_over_both_versions() {
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_path(locks.clone()).no_wait();
    let app: Router = Router::new().route("/a", any(async || ())).layer(layer);
    let _holder = locks.acquire(LockKey::from_path("/a")).await.unwrap();
    for (method, connection, expected) in [
        (Method::GET, "upgrade", 409),
        (Method::GET, "keep-alive", 200),
        (Method::CONNECT, "keep-alive", 409),
    ] {
        let request = Request::builder().method(method).uri("http://localhost/a");
        let request = request.header("connection", connection);
        let request = request.body(Body::empty()).unwrap();
        assert_eq!(
            app.clone().oneshot(request).await.unwrap().status(),
            expected
        );
    }
}
