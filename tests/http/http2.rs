//! Clients over HTTP/2 that cancel, disconnect or do not read, with locks in Redis.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::{any, post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_lock::{LockLayer, LockManager};

use crate::served::{Frames, Gate, Stream, WINDOW, is_locked, over_http2, path_key};
use crate::support::engine::{MS, PATIENCE, SECOND, manager, nothing_is_left, within};
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

/// The requests whose handlers completed, and the counts that these wrote.
#[derive(Default)]
struct Counts {
    completed: HashMap<String, usize>,
    written: HashMap<String, usize>,
}

/// Reads a count, works, and writes one more. Two concurrent handlers for one count would lose an update.
async fn count(counts: Arc<Mutex<Counts>>, id: String) {
    let before = counts.lock().unwrap().written.get(&id).copied();
    sleep(MS).await;
    let mut counts = counts.lock().unwrap();
    counts.written.insert(id.clone(), before.unwrap_or(0) + 1);
    *counts.completed.entry(id).or_default() += 1;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_with_cancelled_requests_loses_no_update() {
    const CONNECTIONS: usize = 4;
    const REQUESTS: usize = 150;
    // One of so many requests is cancelled. A server ends a connection with 20 resets that it has not handled.
    const ONE_OF: usize = 15;
    let redis = RedisServer::start();
    let locks = manager(redis.url(), 30 * SECOND).await;
    let counts = Arc::<Mutex<Counts>>::default();
    let shared = Arc::clone(&counts);
    let handler = async move |Path(id): Path<String>| count(Arc::clone(&shared), id).await;
    let layer = LockLayer::by_path(locks.clone()).wait(PATIENCE);
    let address = serve(Router::new().route("/{id}", post(handler)).layer(layer)).await;

    let mut clients = JoinSet::new();
    let mut connections = Vec::new();
    for connection in 0..CONNECTIONS {
        let (sender, socket) = over_http2(address, WINDOW).await;
        connections.push(socket);
        for request in 0..REQUESTS {
            let mut sender: SendRequest<Full<Bytes>> = sender.clone();
            // While the request waits, in the handler, or after it.
            let limit = match request % ONE_OF {
                0 => Duration::from_millis(fastrand::u64(..200)),
                _ => 2 * PATIENCE,
            };
            clients.spawn(async move {
                let response = sender.send_request(to(address, &format!("/{}", request % 4)));
                match timeout(limit, response).await {
                    Ok(Ok(response)) => {
                        assert_eq!(response.status(), StatusCode::OK);
                        true
                    }
                    // Its connection has ended.
                    Ok(Err(error)) => {
                        assert_eq!(connection, 0, "the connection is open: {error:?}");
                        false
                    }
                    Err(_) => false,
                }
            });
        }
    }
    // One client disconnects with all of its requests.
    sleep(50 * MS).await;
    connections[0].shutdown(Shutdown::Both).unwrap();
    let mut succeeded = 0;
    while let Some(client) = clients.join_next().await {
        succeeded += usize::from(client.unwrap());
    }
    nothing_is_left(&redis, &[&locks], 2 * SECOND, "after the load").await;
    let counts = counts.lock().unwrap();
    assert_eq!(counts.written, counts.completed);
    let completed: usize = counts.completed.values().sum();
    assert!(succeeded <= completed, "{succeeded} of {completed}");
    assert!(completed < CONNECTIONS * REQUESTS, "none was cancelled");
    let open = (CONNECTIONS - 1) * REQUESTS;
    assert!(succeeded >= open - open / ONE_OF, "{succeeded} of {open}");
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
