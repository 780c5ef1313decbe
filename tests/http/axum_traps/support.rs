//! Requests, and a server on a free port.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout as timeout_after;
use tower::ServiceExt;
use tower_lock::{LockLayer, LockManager};

use crate::served::{Call, Frames, Gate, Stream};

pub(super) fn request(method: Method, path: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    request.body(Body::empty()).unwrap()
}

pub(super) async fn status(app: &Router, method: Method, path: &str) -> StatusCode {
    let response = app.clone().oneshot(request(method, path)).await.unwrap();
    response.status()
}

pub(super) async fn text(app: &Router, path: &str) -> String {
    let response = app
        .clone()
        .oneshot(request(Method::GET, path))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Serves `/gate` behind a lock by path. The test controls its handler.
pub(super) fn gated(locks: &LockManager) -> (Router, UnboundedReceiver<Call>) {
    let (gate, calls) = Gate::new();
    let handler =
        async move |request: Request<Body>| gate.handle(request).await.unwrap().map(Body::new);
    let app = Router::new()
        .route("/gate", any(handler))
        .route_layer(LockLayer::by_path(locks.clone()).all_methods());
    (app, calls)
}

pub(super) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends the head of a request on its own connection.
pub(super) async fn send(address: SocketAddr, head: &str) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}\r\nhost: localhost\r\n\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
}

/// Reads until this text has arrived.
pub(super) async fn read_until(connection: &mut TcpStream, end: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(end) {
        let mut buffer = [0; 1024];
        let read = timeout_after(Duration::from_secs(60), connection.read(&mut buffer)).await;
        let count = read
            .unwrap_or_else(|_| panic!("no {end:?} after {seen:?}"))
            .unwrap();
        assert!(count > 0, "the server hung up after {seen:?}");
        seen.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    seen
}

pub(super) fn streaming() -> (Response<Stream>, Frames) {
    let (body, frames) = Stream::new();
    (Response::new(body), frames)
}
