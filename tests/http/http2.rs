//! Clients over HTTP/2 that disconnect or do not read.

use std::net::{Shutdown, SocketAddr, TcpStream};

use axum::Router;
use axum::body::Body;
use axum::routing::{any, post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tower_lock::{LockLayer, LockManager};

use crate::served::{Frames, Gate, Stream, WINDOW, is_locked, over_http2, path_key};
use crate::support::engine::{PATIENCE, SECOND, manager, nothing_is_left, within};
use crate::support::redis_server::RedisServer;

fn to(address: SocketAddr, path: &str) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://{address}{path}"));
    request.body(Full::default()).unwrap()
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn unread_body_in_memory_holds_no_lock() {
    let locks = LockManager::in_memory();
    let app = Router::new().route("/a", post(async || "a body of some bytes"));
    let address = serve(app.layer(LockLayer::by_path(locks.clone()))).await;
    let (mut client, _socket) = over_http2(address, 0).await;
    let response = client.send_request(to(address, "/a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    within(PATIENCE, "the lock is free", || !is_locked(&locks)).await;
    // The body has not been read.
    drop(response);
}

/// A response that streams, and whose client does not read.
struct Unread {
    address: SocketAddr,
    client: SendRequest<Full<Bytes>>,
    socket: TcpStream,
    response: http::Response<hyper::body::Incoming>,
    frames: Frames,
}

async fn unread(locks: &LockManager) -> Unread {
    let (gate, mut calls) = Gate::new();
    let handler =
        async move |request: Request<Body>| gate.handle(request).await.unwrap().map(Body::new);
    let layer = LockLayer::by_path(locks.clone()).no_wait();
    let address = serve(Router::new().route("/a", any(handler)).layer(layer)).await;
    let (mut client, socket) = over_http2(address, 0).await;
    let response = tokio::spawn(client.send_request(to(address, "/a")));
    let (body, frames) = Stream::new();
    let call = timeout(PATIENCE, calls.recv()).await.unwrap().unwrap();
    call.answer(http::Response::new(body));
    let response = response.await.unwrap().unwrap();
    frames.data("never read");
    Unread {
        address,
        client,
        socket,
        response,
        frames,
    }
}

#[tokio::test]
async fn unread_streaming_body_holds_lock_until_disconnect() {
    let redis = RedisServer::start();
    let locks = manager(redis.url(), 30 * SECOND).await;
    let unread = unread(&locks).await;
    let (mut other, _other) = over_http2(unread.address, WINDOW).await;
    let busy = other.send_request(to(unread.address, "/a")).await.unwrap();
    assert_eq!(busy.status(), StatusCode::CONFLICT);
    assert!(is_locked(&locks));
    unread.socket.shutdown(Shutdown::Both).unwrap();
    let is_dropped = || unread.frames.is_abandoned();
    within(PATIENCE, "the body is dropped", is_dropped).await;
    drop(unread.response);
    nothing_is_left(&redis, &[&locks], 2 * SECOND, "after the disconnect").await;
}

#[tokio::test]
async fn reset_of_unread_stream_releases_lock() {
    let locks = LockManager::in_memory();
    let unread = unread(&locks).await;
    assert!(is_locked(&locks));
    // Resets the stream. The connection stays open.
    drop(unread.response);
    let is_dropped = || unread.frames.is_abandoned();
    within(PATIENCE, "the body is dropped", is_dropped).await;
    assert!(!unread.client.is_closed());
    let again = locks.acquire(path_key("/a"));
    drop(timeout(PATIENCE, again).await.unwrap().unwrap());
}
