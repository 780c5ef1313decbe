//! `shared_reads`: reads of one path overlap each other, and writes overlap nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_lock::backend::Mode;
use tower_lock::{Held, LockLayer, LockManager};

use crate::support::engine::{MS, PATIENCE, SECOND, within};

/// The holders of one path: negative while a write runs, otherwise the number of reads.
#[derive(Default)]
struct Holders {
    now: AtomicI32,
    most_reads: AtomicI32,
    writes: AtomicI32,
    /// The requests that ran beside another one that they exclude.
    overlaps: AtomicI32,
}

impl Holders {
    async fn serve<B>(&self, request: Request<B>) -> Response<String> {
        let is_read = request.method() == Method::GET;
        let held = request.extensions().get::<Held>().unwrap();
        let mode = if is_read {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        assert_eq!(held.mode(), mode);
        let change = if is_read { 1 } else { -1_000 };
        let (before, _left) = Entered::new(&self.now, change);
        let fits = if is_read { before >= 0 } else { before == 0 };
        self.overlaps.fetch_add(i32::from(!fits), Ordering::SeqCst);
        self.most_reads
            .fetch_max(self.now.load(Ordering::SeqCst), Ordering::SeqCst);
        self.writes.fetch_add(i32::from(!is_read), Ordering::SeqCst);
        sleep(3 * MS).await;
        Response::new(String::new())
    }
}

/// A request in the handler, also of a client that disconnects there.
struct Entered<'a>(&'a AtomicI32, i32);

impl<'a> Entered<'a> {
    /// Returns the number of requests before it as well.
    fn new(now: &'a AtomicI32, change: i32) -> (i32, Self) {
        let before = now.fetch_add(change, Ordering::SeqCst);
        (before, Self(now, change))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

fn request(method: Method) -> Request<String> {
    let request = Request::builder().method(method).uri("/orders/1");
    request.body(String::new()).unwrap()
}

#[tokio::test]
async fn writes_overlap_nothing_and_reads_each_other() {
    let holders = Arc::new(Holders::default());
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_path(locks.clone()).shared_reads();
    let service = layer.layer(service_fn({
        let holders = Arc::clone(&holders);
        move |request| {
            let holders = Arc::clone(&holders);
            async move { Ok::<_, Infallible>(holders.serve(request).await) }
        }
    }));
    let clients = (0..16).map(|client| {
        let service = service.clone();
        tokio::spawn(async move {
            for round in 0..40 {
                let method = if client % 4 == 0 {
                    Method::PUT
                } else {
                    Method::GET
                };
                let call = service.clone().oneshot(request(method));
                // Some clients disconnect while they wait, or in the handler.
                if round % 5 == client % 5 {
                    drop(timeout(4 * MS, call).await);
                } else {
                    assert_eq!(call.await.unwrap().status(), StatusCode::OK);
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        timeout(30 * SECOND, client).await.unwrap().unwrap();
    }
    let most_reads = holders.most_reads.load(Ordering::SeqCst);
    let writes = holders.writes.load(Ordering::SeqCst);
    assert!(
        most_reads >= 6 && writes >= 100,
        "{most_reads} reads, {writes} writes"
    );
    assert_eq!(holders.overlaps.load(Ordering::SeqCst), 0);
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn last_of_both_settings_for_reads_counts() {
    let locks = LockManager::in_memory();
    let by_path = || LockLayer::by_path(locks.clone());
    let shared = |mode| Some(Some(mode));
    for (layer, method, expected) in [
        (by_path().shared_reads(), Method::GET, shared(Mode::Shared)),
        (by_path().shared_reads(), Method::HEAD, shared(Mode::Shared)),
        (by_path().shared_reads(), Method::OPTIONS, None),
        (by_path().shared_reads(), Method::TRACE, None),
        (
            by_path().shared_reads(),
            Method::POST,
            shared(Mode::Exclusive),
        ),
        (
            by_path().shared_reads().all_methods(),
            Method::GET,
            shared(Mode::Exclusive),
        ),
        (
            by_path().all_methods().shared_reads(),
            Method::GET,
            shared(Mode::Shared),
        ),
        (by_path(), Method::GET, None),
        (
            by_path().shared_reads().permits(2),
            Method::GET,
            shared(Mode::Permit),
        ),
    ] {
        let mut service = layer.layer(service_fn(|request: Request<String>| async move {
            let mode = request.extensions().get::<Held>().map(Held::mode);
            let mut response = Response::new(String::new());
            response.extensions_mut().insert(mode);
            Ok::<_, Infallible>(response)
        }));
        let response = service
            .ready()
            .await
            .unwrap()
            .call(request(method.clone()))
            .await;
        let mode = response
            .unwrap()
            .extensions()
            .get::<Option<Mode>>()
            .copied();
        assert_eq!(mode.filter(Option::is_some), expected, "{method}");
    }
}

/// It can write afterwards, as a `CONNECT` over HTTP/2 can.
#[tokio::test]
async fn get_that_asks_for_upgrade_locks_exclusively() {
    let layer = LockLayer::by_path(LockManager::in_memory()).shared_reads();
    let service = layer.layer(service_fn(|request: Request<String>| async move {
        let held: &Held = request.extensions().get().unwrap();
        Ok::<_, Infallible>(Response::new(format!("{:?}", held.mode())))
    }));
    for (connection, mode) in [("upgrade", "Exclusive"), ("keep-alive", "Shared")] {
        let mut request = request(Method::GET);
        let value = connection.parse().unwrap();
        request.headers_mut().insert("connection", value);
        let response = service.clone().oneshot(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, mode, "{connection}");
    }
}

async fn handler(State(holders): State<Arc<Holders>>, request: Request<Body>) -> Response<Body> {
    holders.serve(request).await.map(|_| Body::from("done"))
}

/// Sends one request over a connection of its own. Returns its response, or hangs up after a while.
async fn send(
    address: SocketAddr,
    method: &str,
    hangs_up_after: Option<Duration>,
) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{method} /orders/1 HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    if let Some(after) = hangs_up_after {
        sleep(after).await;
        return None;
    }
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    Some(response)
}

/// Over TCP: a connection that closes drops the request at any point of its wait, its handler or its body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_keep_reads_and_writes_apart() {
    let holders = Arc::new(Holders::default());
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_path(locks.clone()).shared_reads();
    let app = Router::new()
        .route("/orders/{id}", get(handler).put(handler))
        .layer(layer)
        .with_state(Arc::clone(&holders));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let clients = (0..16).map(|client| {
        tokio::spawn(async move {
            for round in 0..40 {
                let method = if client % 4 == 0 { "PUT" } else { "GET" };
                let hangs_up = (round % 5 == client % 5).then(|| (round % 7) * MS);
                let response = send(address, method, hangs_up).await;
                assert!(response.is_none_or(|it| it.starts_with("HTTP/1.1 200")));
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        timeout(30 * SECOND, client).await.unwrap().unwrap();
    }
    let most_reads = holders.most_reads.load(Ordering::SeqCst);
    let writes = holders.writes.load(Ordering::SeqCst);
    assert!(
        most_reads >= 4 && writes >= 100,
        "{most_reads} reads, {writes} writes"
    );
    assert_eq!(holders.overlaps.load(Ordering::SeqCst), 0);
    within(PATIENCE, "the end", || locks.snapshot().is_idle()).await;
    server.abort();
}
