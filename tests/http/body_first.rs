//! `read_body_first` on axum over TCP: slow clients, large bodies, and clients that disconnect.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tower_lock::{Held, LockLayer, LockManager, LockScopeLayer};

use crate::served::{OnDrop, path_key};
use crate::stacks::over_http1;
use crate::support::engine::{MS, PATIENCE, SECOND, within};

const LIMIT: usize = 5;

/// The start or the end of a request, as seen outside of the layer.
#[derive(Debug, PartialEq)]
enum Event {
    Starts,
    Ends,
}

struct Server {
    locks: LockManager,
    address: SocketAddr,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Server {
    /// Serves a handler that returns the body of its request.
    async fn start(limit: usize, deadline: Duration) -> Self {
        let locks = LockManager::in_memory();
        let layer = LockLayer::by_path(locks.clone())
            .no_wait()
            .read_body_first(limit, deadline);
        let (events, received) = mpsc::unbounded_channel();
        let report = from_fn(move |request: Request, next: Next| {
            let events = events.clone();
            async move {
                events.send(Event::Starts).unwrap();
                let _ends = OnDrop(|| drop(events.send(Event::Ends)));
                next.run(request).await
            }
        });
        let app = Router::new()
            .route("/a", post(async |_: Held, body: Bytes| body))
            .layer(LockScopeLayer::new())
            .layer(layer)
            .layer(report);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            locks,
            address,
            events: received,
        }
    }

    async fn next_is(&mut self, event: Event) {
        let next = timeout(PATIENCE, self.events.recv()).await;
        assert_eq!(next.expect("in time"), Some(event));
    }

    /// Sends a head and a part of its body.
    async fn send(&self, headers: &str, body: &str) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        let request = format!("POST /a HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n{body}");
        client.write_all(request.as_bytes()).await.unwrap();
        client
    }

    async fn post(&self, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
        let request = http::Request::post("/a").header("host", "a");
        let request = request.body(Full::new(body.into())).unwrap();
        let mut client = over_http1(self.address).await;
        let response = client.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap();
        (status, body.to_bytes())
    }

    fn holds_nothing(&self) {
        assert!(
            self.locks.snapshot().is_idle(),
            "{:?}",
            self.locks.snapshot()
        );
    }
}

/// Reads until the text ends the response so far.
async fn read_until(client: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !read.ends_with(end.as_bytes()) {
            read.push(client.read_u8().await.expect("more of the response"));
        }
    };
    let finished = timeout(PATIENCE, reading).await;
    let read = String::from_utf8(read).unwrap();
    assert!(finished.is_ok(), "only {read:?}");
    read
}

/// Reads the head of a response.
async fn head(client: &mut TcpStream) -> String {
    read_until(client, "\r\n\r\n").await.to_ascii_lowercase()
}

#[tokio::test]
async fn slow_body_does_not_hold_key() {
    let mut server = Server::start(LIMIT, PATIENCE).await;
    let mut slow = server.send("content-length: 5", "12").await;
    server.next_is(Event::Starts).await;
    assert_eq!(
        server.post("fast").await,
        (StatusCode::OK, Bytes::from("fast"))
    );
    server.holds_nothing();
    slow.write_all(b"345").await.unwrap();
    assert!(head(&mut slow).await.starts_with("http/1.1 200"));
    read_until(&mut slow, "12345").await;
}

#[tokio::test]
async fn body_above_limit_is_413_before_lock() {
    let server = Server::start(LIMIT, PATIENCE).await;
    let _guard = server.locks.acquire(path_key("/a")).await.unwrap();
    // The first client waits for `100 Continue` and receives the rejection.
    for (headers, body) in [
        ("content-length: 6\r\nexpect: 100-continue", ""),
        ("content-length: 6", "12"),
        ("transfer-encoding: chunked", "3\r\n123\r\n3\r\n456\r\n"),
    ] {
        let mut client = server.send(headers, body).await;
        let head = head(&mut client).await;
        assert!(head.starts_with("http/1.1 413"), "{head}");
        assert!(head.contains("cache-control: no-store"), "{head}");
        assert!(!head.contains("retry-after"), "{head}");
        let problem = read_until(&mut client, "}").await;
        assert!(problem.contains("\"about:blank\""), "{problem}");
    }
}

#[tokio::test]
async fn body_of_exactly_limit_is_served() {
    let server = Server::start(LIMIT, PATIENCE).await;
    assert_eq!(server.post("12345").await.0, StatusCode::OK);
    let chunks = "3\r\n123\r\n2\r\n45\r\n0\r\n\r\n";
    let mut client = server.send("transfer-encoding: chunked", chunks).await;
    assert!(head(&mut client).await.starts_with("http/1.1 200"));
    read_until(&mut client, "12345").await;
}

#[tokio::test]
async fn late_body_is_408_after_deadline() {
    let deadline = 200 * MS;
    let mut server = Server::start(LIMIT, deadline).await;
    let start = Instant::now();
    let mut slow = server.send("content-length: 5", "12").await;
    let head = head(&mut slow).await;
    assert!(start.elapsed() >= deadline, "{:?}", start.elapsed());
    assert!(head.starts_with("http/1.1 408"), "{head}");
    assert!(!head.contains("retry-after"), "{head}");
    server.next_is(Event::Starts).await;
    server.next_is(Event::Ends).await;
    server.holds_nothing();
}

#[tokio::test]
async fn expecting_client_is_asked_for_its_body() {
    let server = Server::start(LIMIT, PATIENCE).await;
    let headers = "content-length: 5\r\nexpect: 100-continue";
    let mut client = server.send(headers, "").await;
    assert!(head(&mut client).await.starts_with("http/1.1 100"));
    client.write_all(b"12345").await.unwrap();
    assert!(head(&mut client).await.starts_with("http/1.1 200"));
}

#[tokio::test]
async fn large_body_arrives_byte_for_byte() {
    let server = Server::start(1 << 20, PATIENCE).await;
    let mut rng = fastrand::Rng::with_seed(7);
    let body: Bytes = (0..1 << 20).map(|_| rng.u8(..)).collect();
    let (status, returned) = server.post(body.clone()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(returned == body, "{} bytes", returned.len());
}

#[tokio::test]
async fn disconnect_mid_body_leaves_nothing() {
    let mut server = Server::start(LIMIT, PATIENCE).await;
    for headers in ["content-length: 5", "transfer-encoding: chunked"] {
        let slow = server.send(headers, "1\r\n").await;
        server.next_is(Event::Starts).await;
        drop(slow);
        server.next_is(Event::Ends).await;
        server.holds_nothing();
    }
}

/// Without the setting, the body of a slow client holds the key.
#[tokio::test]
async fn slow_body_holds_key_without_setting() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route("/a", post(async |body: Bytes| body))
        .layer(LockLayer::by_path(locks.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut slow = TcpStream::connect(address).await.unwrap();
    let head = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n12";
    slow.write_all(head).await.unwrap();
    within(PATIENCE, "the lock", || locks.snapshot().held == 1).await;
}

/// A stream of messages never ends before its first response.
#[tokio::test]
async fn grpc_stream_ends_at_deadline() {
    use tower::{Layer, ServiceExt, service_fn};

    let layer = LockLayer::by_path(LockManager::in_memory()).read_body_first(LIMIT, 10 * MS);
    let service = layer.layer(service_fn(async |_: Request<_>| {
        Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
    }));
    let (body, _frames) = crate::served::Stream::new();
    let request = Request::post("/orders.Orders/Update")
        .header(CONTENT_TYPE, "application/grpc")
        .body(body)
        .unwrap();
    let response = timeout(10 * SECOND, service.oneshot(request)).await;
    let response = response.expect("at the deadline").unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["grpc-status"], "4");
}
