//! 1,000 clients that disconnect at every point of a request: no key is left, and none is in a queue.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::request::Parts;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower_lock::{Held, LockGuard, LockKey, LockLayer, LockManager, LockScopeLayer, Locked};

use crate::scope::support::{LockedId, key};
use crate::served::path_key;
use crate::support::engine::{
    PATIENCE, SECOND, manager, no_subscription_is_left, nothing_is_left, within,
};
use crate::support::redis_server::RedisServer;

const CLIENTS: usize = 1_000;
/// Longer than the test.
const WAIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);
/// The number of clients at a time, which is no multiple of the number of keys.
const ROUND: usize = 99;
const KEYS: usize = 10;
/// The key that the test holds.
const HELD: &str = "held";
const BODY: &str = "body";

/// The point that a request has reached in the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    /// The server has no complete head.
    None,
    /// In the queue.
    Waits,
    /// Its body is incomplete. In a scope, it holds its lock.
    InRequestBody,
    InHandler,
    InBody,
    Complete,
}

const POINTS: [Point; 6] = [
    Point::None,
    Point::Waits,
    Point::InRequestBody,
    Point::InHandler,
    Point::InBody,
    Point::Complete,
];

/// What the clients and the server share: the point of each request, and the last points of those that ended.
#[derive(Clone)]
struct Requests {
    points: Arc<[watch::Sender<Point>]>,
    ended: Arc<Mutex<BTreeMap<Point, usize>>>,
}

impl Requests {
    fn new() -> Self {
        let points = (0..CLIENTS).map(|_| watch::Sender::new(Point::None));
        Self {
            points: points.collect(),
            ended: Arc::default(),
        }
    }

    async fn reached(&self, client: usize, point: Point) {
        let mut points = self.points[client].subscribe();
        points.wait_for(|reached| *reached == point).await.unwrap();
    }
}

/// A request in the server. Each part of it that can be dropped has a clone.
#[derive(Clone)]
struct Trace(Arc<TraceInner>);

struct TraceInner {
    requests: Requests,
    client: usize,
}

impl Trace {
    fn reach(&self, point: Point) {
        self.0.requests.points[self.0.client].send_replace(point);
    }

    /// Returns the point at which the client disconnects.
    fn last(&self) -> Point {
        last(self.0.client)
    }
}

impl Drop for TraceInner {
    fn drop(&mut self) {
        let point = *self.requests.points[self.client].borrow();
        *self
            .requests
            .ended
            .lock()
            .unwrap()
            .entry(point)
            .or_default() += 1;
    }
}

fn last(client: usize) -> Point {
    POINTS[client % POINTS.len()]
}

async fn traced(State(requests): State<Requests>, mut request: Request, next: Next) -> Response {
    let client = request.headers()["x-client"].to_str().unwrap();
    let client = client.parse().unwrap();
    let trace = Trace(Arc::new(TraceInner { requests, client }));
    trace.reach(Point::Waits);
    request.extensions_mut().insert(trace.clone());
    next.run(request).await
}

/// Follows `Locked` and comes before the body.
struct HasLock;

impl<S: Sync> FromRequestParts<S> for HasLock {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let trace: &Trace = parts.extensions.get().unwrap();
        trace.reach(Point::InRequestBody);
        Ok(Self)
    }
}

async fn handler(
    Locked(_id, _guard): LockedId,
    Extension(trace): Extension<Trace>,
    _: HasLock,
    body: Bytes,
) -> Response {
    respond(trace, &body).await
}

/// Runs after the body was read, and under the lock.
async fn handler_after_body(_: Held, Extension(trace): Extension<Trace>, body: Bytes) -> Response {
    respond(trace, &body).await
}

/// Reports the body while the layer reads it. The request waits for its lock after that.
async fn traced_body(request: Request, next: Next) -> Response {
    let trace: Trace = request.extensions().get().cloned().unwrap();
    trace.reach(Point::None);
    let mut read = 0;
    let request = request.map(|body| {
        Body::from_stream(body.into_data_stream().inspect(move |frame| {
            read += frame.as_ref().map_or(0, Bytes::len);
            trace.reach(match read == BODY.len() {
                true => Point::Waits,
                false => Point::InRequestBody,
            });
        }))
    });
    next.run(request).await
}

async fn respond(trace: Trace, body: &[u8]) -> Response {
    assert_eq!(body, BODY.as_bytes());
    trace.reach(Point::InHandler);
    if trace.last() == Point::InHandler {
        pending::<()>().await;
    }
    let frame = |trace: &Trace, point| {
        trace.reach(point);
        Ok::<_, Infallible>(Bytes::from_static(b"frame"))
    };
    let frames = stream::iter([Point::InBody, Point::InBody, Point::Complete]);
    Body::from_stream(frames.then(move |point| {
        let trace = trace.clone();
        async move {
            tokio::task::yield_now().await;
            if point == Point::Complete && trace.last() == Point::InBody {
                pending::<()>().await;
            }
            frame(&trace, point)
        }
    }))
    .into_response()
}

async fn read_until(connection: &mut TcpStream, end: &str) {
    let mut seen = String::new();
    while !seen.contains(end) {
        let mut buffer = [0; 256];
        let count = connection.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the server hung up after {seen:?}");
        seen.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
}

/// Disconnects when its request has reached its last point.
async fn client(address: SocketAddr, client: usize, requests: Requests) {
    let last = last(client);
    let mut connection = TcpStream::connect(address).await.unwrap();
    let path = match last {
        Point::Waits => HELD.to_owned(),
        _ => (client % KEYS).to_string(),
    };
    let head = format!("POST /{path} HTTP/1.1\r\nhost: a\r\nx-client: {client}\r\n");
    let whole = head + "content-length: 4\r\n\r\n" + BODY;
    let length = match last {
        // Connected, in the first line, and before the last byte of the head.
        Point::None => [0, 10, whole.len() - 5][client % 3],
        Point::InRequestBody => whole.len() - 2,
        _ => whole.len(),
    };
    connection
        .write_all(&whole.as_bytes()[..length])
        .await
        .unwrap();
    requests.reached(client, last).await;
    match last {
        Point::InBody if client.is_multiple_of(4) => read_until(&mut connection, "\r\n\r\n").await,
        Point::InBody => read_until(&mut connection, "frame").await,
        Point::Complete => read_until(&mut connection, "\r\n0\r\n\r\n").await,
        _ => {}
    }
}

/// Sends all requests, and waits until each has ended at its last point. Then releases the key `HELD`.
async fn all_disconnect(app: Router, requests: &Requests, guard: LockGuard) {
    let app = app.layer(from_fn_with_state(requests.clone(), traced));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let numbers: Vec<_> = (0..CLIENTS).collect();
    for round in numbers.chunks(ROUND) {
        let clients = round.iter();
        let clients =
            clients.map(|&number| tokio::spawn(client(address, number, requests.clone())));
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    }

    let expected = numbers.iter().map(|&client| last(client));
    let mut expected = expected.fold(BTreeMap::new(), |mut counts, point| {
        *counts.entry(point).or_default() += 1;
        counts
    });
    let unseen: usize = expected.remove(&Point::None).unwrap();
    assert_eq!(unseen, CLIENTS.div_ceil(POINTS.len()));
    let ended = || requests.ended.lock().unwrap().values().sum::<usize>();
    within(PATIENCE, "all ended", || ended() >= CLIENTS - unseen).await;
    assert_eq!(*requests.ended.lock().unwrap(), expected);
    drop(guard);
    server.abort();
}

async fn is_free(locks: &LockManager, key: impl Fn(&str) -> LockKey) {
    for id in (0..KEYS).map(|id| id.to_string()).chain([HELD.to_owned()]) {
        assert!(!locks.is_locked(key(&id)).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnecting_clients_leave_no_key() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(key(HELD)).await.unwrap();
    let requests = Requests::new();
    let app = Router::new()
        .route("/{id}", post(handler))
        .layer(LockScopeLayer::new().wait(WAIT))
        .with_state(locks.clone());
    all_disconnect(app, &requests, guard).await;
    within(PATIENCE, "idle", || locks.snapshot().is_idle()).await;
    is_free(&locks, key).await;
}

/// Another process holds the key, so the waiters are in the queue in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnects_around_body_leave_no_queue() {
    let redis = RedisServer::start();
    let locks = manager(redis.url(), LEASE).await;
    let there = manager(redis.url(), LEASE).await;
    let held = path_key(&format!("/{HELD}"));
    let guard = there.acquire(&held).await.unwrap();
    let requests = Requests::new();
    let layer = LockLayer::by_path(locks.clone()).wait(WAIT);
    let app = Router::new()
        .route("/{id}", post(handler_after_body))
        .layer(layer.read_body_first(BODY.len(), WAIT))
        .layer(from_fn(traced_body));
    all_disconnect(app, &requests, guard).await;
    // A place that no process left expires later.
    nothing_is_left(&redis, &[&locks, &there], 3 * SECOND, "all disconnected").await;
    is_free(&locks, |id| path_key(&format!("/{id}"))).await;
    no_subscription_is_left(&redis).await;
}
