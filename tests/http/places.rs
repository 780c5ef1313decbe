//! Where other layers, servers and proxies belong, as the documentation says, and what they do elsewhere.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic_prost::ProstCodec;
use tonic_web::{GrpcWebCall, GrpcWebClientService, GrpcWebLayer};
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::load_shed::error::Overloaded;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_http::compression::CompressionLayer;
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::map_request_body::MapRequestBodyLayer;
use tower_lock::{LockLayer, LockManager, Memory};

use crate::served::{Stream, WINDOW, assert_waits, is_locked, over_http2, path_key, until};

/// Only bounds a failing test.
const PATIENCE: Duration = Duration::from_secs(60);
/// The streams of one connection that hyper accepts by default.
const STREAMS: usize = 200;

/// Serves an app with hyper's default of streams, or with another.
async fn serve(app: Router, streams: Option<u32>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(app.clone());
            tokio::spawn(async move {
                let mut server = auto::Builder::new(TokioExecutor::new());
                if let Some(streams) = streams {
                    server.http2().max_concurrent_streams(streams);
                }
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    address
}

fn to(address: SocketAddr, path: &str) -> http::Request<Full<Bytes>> {
    let request = http::Request::put(format!("http://{address}{path}"));
    request.body(Full::default()).unwrap()
}

/// Returns `true` if a request for another key runs while `waiting` of `STREAMS` requests of its connection wait, and the
/// others have been rejected. If not, expects it to run after one of them has ended.
async fn other_key_runs(locks: LockManager, waiting: usize, streams: Option<u32>) -> bool {
    let has_stream = waiting < STREAMS || streams.is_some();
    let layer = LockLayer::by_path(locks.clone()).wait(PATIENCE);
    let app = Router::new().route("/{id}", put(async || "ran").layer(layer));
    let address = serve(app, streams).await;
    let _holder = locks.acquire(path_key("/busy")).await.unwrap();
    let (client, _socket) = over_http2::<Full<Bytes>>(address, WINDOW).await;
    let mut waiters = JoinSet::new();
    let mut handles = Vec::new();
    for _ in 0..STREAMS {
        let mut client = client.clone();
        let response = async move { client.send_request(to(address, "/busy")).await };
        handles.push(waiters.spawn(response));
    }
    until(|| locks.snapshot().waiting == waiting).await;
    let mut client = client.clone();
    let mut other = Box::pin(client.send_request(to(address, "/free")));
    // A request without a stream has no response, however long this is.
    let limit = match has_stream {
        true => PATIENCE,
        false => Duration::from_millis(200),
    };
    if let Ok(response) = timeout(limit, &mut other).await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
        return true;
    }
    handles.pop().unwrap().abort();
    let response = timeout(PATIENCE, other).await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    false
}

#[tokio::test]
async fn waiters_use_up_streams_of_connection() {
    assert!(!other_key_runs(LockManager::in_memory(), STREAMS, None).await);
}

#[tokio::test]
async fn more_streams_than_waiters_let_other_keys_run() {
    assert!(other_key_runs(LockManager::in_memory(), STREAMS, Some(1_000)).await);
}

#[tokio::test]
async fn fewer_waiters_than_streams_let_other_keys_run() {
    let locks = LockManager::builder(Memory::new()).max_waiters_per_key(100);
    assert!(other_key_runs(locks.build().unwrap(), 100, None).await);
}

/// Forwards one request. If the client leaves, the proxy sends `left`, and then closes the connection to the server or
/// waits for the response.
async fn proxy(server: SocketAddr, closes: bool, left: oneshot::Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(server).await.unwrap();
        let mut buffer = [0; 1024];
        loop {
            let length = client.read(&mut buffer).await.unwrap_or(0);
            if length == 0 {
                break;
            }
            server.write_all(&buffer[..length]).await.unwrap();
        }
        if closes {
            drop(server);
            left.send(()).unwrap();
        } else {
            left.send(()).unwrap();
            drop(server.read(&mut buffer).await);
        }
    });
    address
}

/// Returns the number of handlers that ran for a client that left behind a proxy while its request waited.
async fn runs_for_client_that_left(closes: bool) -> usize {
    let locks = LockManager::in_memory();
    let ran = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&ran);
    let layer = LockLayer::by_path(locks.clone()).wait(PATIENCE);
    let handler = async move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    let server = serve(Router::new().route("/a", put(handler).layer(layer)), None).await;
    let holder = locks.acquire(path_key("/a")).await.unwrap();
    let (left, has_left) = oneshot::channel();
    let address = proxy(server, closes, left).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = b"PUT /a HTTP/1.1\r\nhost: a\r\n\r\n";
    client.write_all(head).await.unwrap();
    until(|| locks.snapshot().waiting == 1).await;
    drop(client);
    has_left.await.unwrap();
    if closes {
        until(|| locks.snapshot().waiting == 0).await;
    }
    holder.release().await.unwrap();
    until(|| locks.snapshot().is_idle()).await;
    ran.load(Ordering::SeqCst)
}

#[tokio::test]
async fn proxy_that_closes_ends_wait_of_client_that_left() {
    assert_eq!(runs_for_client_that_left(true).await, 0);
}

/// As HAProxy does without `option abortonclose`.
#[tokio::test]
async fn proxy_that_waits_runs_handler_for_no_client() {
    assert_eq!(runs_for_client_that_left(false).await, 1);
}

fn request(path: &str) -> http::Request<Body> {
    http::Request::put(path).body(Body::empty()).unwrap()
}

async fn run(_: http::Request<Body>) -> Result<http::Response<Body>, Infallible> {
    Ok(http::Response::default())
}

#[tokio::test]
async fn load_shed_inside_rejects_while_none_runs() {
    let locks = LockManager::in_memory();
    let service = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(run);
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let mut waits = Box::pin(service.clone().oneshot(request("/a")));
    assert_waits(&mut waits).await;
    // The handler has no request. The one that waits has its place.
    let shed = service.clone().oneshot(request("/b")).await;
    assert!(shed.unwrap_err().is::<Overloaded>());
    drop(guard);
    assert_eq!(waits.await.unwrap().status(), StatusCode::OK);
    let served = service.oneshot(request("/b")).await.unwrap();
    assert_eq!(served.status(), StatusCode::OK);
}

#[tokio::test]
async fn load_shed_inside_rejects_after_wait_for_idle() {
    let locks = LockManager::in_memory();
    let (end, ended) = oneshot::channel::<()>();
    let ended = Arc::new(Mutex::new(Some(ended)));
    let service = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(move |request| {
            let ended = ended.lock().unwrap().take();
            async move {
                if let Some(ended) = ended {
                    ended.await.unwrap();
                }
                run(request).await
            }
        });
    let guard = locks.acquire(path_key("/b")).await.unwrap();
    let mut first = Box::pin(service.clone().oneshot(request("/a")));
    assert_waits(&mut first).await;
    let mut second = Box::pin(service.clone().oneshot(request("/b")));
    assert_waits(&mut second).await;
    end.send(()).unwrap();
    drop((first.await.unwrap(), guard));
    // The service is idle, and was not when the second request arrived.
    assert!(second.await.unwrap_err().is::<Overloaded>());
}

#[tokio::test]
async fn buffer_inside_is_full_of_waiting_requests() {
    let locks = LockManager::in_memory();
    let service = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(BufferLayer::new(1))
        .service_fn(run);
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let mut waits = Box::pin(service.clone().oneshot(request("/a")));
    assert_waits(&mut waits).await;
    let mut other = Box::pin(service.clone().oneshot(request("/b")));
    assert_waits(&mut other).await;
    drop(guard);
    assert_eq!(waits.await.unwrap().status(), StatusCode::OK);
    assert_eq!(other.await.unwrap().status(), StatusCode::OK);
}

/// 100 KB that are fewer than 1 KB when compressed.
async fn compressed() -> Body {
    let large = async |_| Ok::<_, Infallible>(http::Response::new(Body::from(vec![b'a'; 100_000])));
    let service = ServiceBuilder::new()
        .layer(CompressionLayer::new())
        .service_fn(large);
    let request = http::Request::get("/").header(ACCEPT_ENCODING, "gzip");
    let response = service.oneshot(request.body(Body::empty()).unwrap()).await;
    let body = response
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert!(body.len() < 1_000);
    Body::from(body)
}

async fn gzipped() -> http::Request<Body> {
    let request = http::Request::put("/a").header(CONTENT_ENCODING, "gzip");
    request.body(compressed().await).unwrap()
}

async fn length(request: http::Request<Body>) -> Result<http::Response<Body>, BoxError> {
    let body = to_bytes(request.into_body(), usize::MAX).await?;
    Ok(http::Response::new(Body::from(body.len().to_string())))
}

#[tokio::test]
async fn decompression_outside_counts_bytes_of_body() {
    let lock = LockLayer::by_path(LockManager::in_memory()).read_body_first(1_000, PATIENCE);
    let service = ServiceBuilder::new()
        .layer(RequestDecompressionLayer::new())
        .layer(MapRequestBodyLayer::new(Body::new))
        .layer(lock)
        .layer(MapRequestBodyLayer::new(Body::new))
        .service_fn(length);
    let response = service.oneshot(gzipped().await).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn decompression_inside_lets_large_body_pass() {
    let lock = LockLayer::by_path(LockManager::in_memory()).read_body_first(1_000, PATIENCE);
    let service = ServiceBuilder::new()
        .layer(lock)
        .layer(RequestDecompressionLayer::new())
        .layer(MapRequestBodyLayer::new(Body::new))
        .service_fn(length);
    let response = service.oneshot(gzipped().await).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "100000");
}

/// A gRPC service whose replies stream until the test ends them.
#[derive(Clone)]
struct Streaming(Arc<Mutex<Option<Stream>>>);

impl tonic::server::NamedService for Streaming {
    const NAME: &'static str = "orders.Orders";
}

impl Service<http::Request<tonic::body::Body>> for Streaming {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<tonic::body::Body>) -> Self::Future {
        let body = self.0.lock().unwrap().take().unwrap();
        let mut response = http::Response::new(tonic::body::Body::new(body));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        std::future::ready(Ok(response))
    }
}

#[tokio::test]
async fn grpc_deadline_ends_with_response_head() {
    const DEADLINE: Duration = Duration::from_millis(50);
    let locks = LockManager::in_memory();
    let (body, frames) = Stream::new();
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
    let incoming = incoming.unwrap();
    let address = incoming.local_addr().unwrap();
    let server = tonic::transport::Server::builder()
        .layer(LockLayer::by_path(locks.clone()))
        .timeout(DEADLINE)
        .add_service(Streaming(Arc::new(Mutex::new(Some(body)))))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    let (mut client, _socket) = over_http2::<Full<Bytes>>(address, WINDOW).await;
    let request = || {
        let request = http::Request::post(format!("http://{address}/orders.Orders/Watch"));
        let request = request.header(CONTENT_TYPE, "application/grpc");
        request.body(Full::default()).unwrap()
    };
    let response = client.send_request(request()).await.unwrap();
    assert_eq!(response.headers().get("grpc-status"), None);
    // In the queue, the deadline ends a call.
    let late = client.send_request(request()).await.unwrap();
    assert!(late.headers().contains_key("grpc-status"), "{late:?}");
    sleep(4 * DEADLINE).await;
    assert!(is_locked(&locks) && !frames.is_abandoned());
    drop(frames);
    until(|| !is_locked(&locks)).await;
    drop(response);
}

/// Calls a method over gRPC-Web, in HTTP/1.1 as a browser does.
async fn over_grpc_web<S, B>(service: S) -> tonic::Status
where
    S: Service<http::Request<WebBody>, Response = http::Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError> + std::fmt::Display> + Send + 'static,
{
    let service = service.map_request(|mut request: http::Request<WebBody>| {
        *request.version_mut() = http::Version::HTTP_11;
        request
    });
    let mut client = tonic::client::Grpc::new(GrpcWebClientService::new(service));
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/orders.Orders/Update");
    let codec = ProstCodec::<(), ()>::default();
    let replied = client.unary(tonic::Request::new(()), path, codec).await;
    replied.unwrap_err()
}

type WebBody = GrpcWebCall<tonic::body::Body>;

#[tokio::test]
async fn grpc_web_layer_outside_translates_rejection() {
    let locks = LockManager::in_memory();
    let key = path_key("/orders.Orders/Update");
    let _holder = locks.acquire(key).await.unwrap();
    let lock = || LockLayer::by_path(locks.clone()).no_wait();
    let outside = ServiceBuilder::new()
        .layer(GrpcWebLayer::new())
        .layer(lock())
        .service(Streaming(Arc::default()));
    let status = over_grpc_web(outside).await;
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    let inside = ServiceBuilder::new()
        .layer(lock())
        .layer(GrpcWebLayer::new())
        .service(Streaming(Arc::default()));
    let status = over_grpc_web(inside).await;
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    assert!(
        status.message().contains("Invalid header bit"),
        "{status:?}"
    );
}

/// The responses by the key of the client.
type Store = Arc<Mutex<HashMap<String, String>>>;

async fn stored(store: Store, request: Request, next: Next) -> Response {
    let key = request.headers()["idempotency-key"].to_str().unwrap();
    let key = key.to_owned();
    let found = store.lock().unwrap().get(&key).cloned();
    if let Some(response) = found {
        return response.into_response();
    }
    let response = next.run(request).await.into_body();
    let response = response.collect().await.unwrap().to_bytes();
    let response = String::from_utf8(response.to_vec()).unwrap();
    store.lock().unwrap().insert(key, response.clone());
    response.into_response()
}

/// Returns the number of handlers that ran for two concurrent requests of one idempotency key.
async fn runs_of_one_key(is_store_inside: bool) -> usize {
    let locks = LockManager::in_memory();
    let ran = Arc::<AtomicUsize>::default();
    let (count, waiting) = (Arc::clone(&ran), locks.clone());
    let handler = async move || {
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            until(|| waiting.snapshot().waiting == 1).await;
        }
        "written"
    };
    let store = Store::default();
    let store = from_fn(move |request, next| stored(Arc::clone(&store), request, next));
    let lock = LockLayer::by_header(locks, "idempotency-key");
    let app = Router::new().route("/", put(handler));
    let app: Router = match is_store_inside {
        true => app.layer(store).layer(lock),
        false => app.layer(lock).layer(store),
    };
    let send = async || {
        let request = http::Request::put("/").header("idempotency-key", "7");
        let request = request.body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(
        tokio::join!(send(), send()),
        (StatusCode::OK, StatusCode::OK)
    );
    ran.load(Ordering::SeqCst)
}

#[tokio::test]
async fn store_of_responses_inside_runs_handler_once() {
    assert_eq!(runs_of_one_key(true).await, 1);
}

#[tokio::test]
async fn store_of_responses_outside_runs_handler_twice() {
    assert_eq!(runs_of_one_key(false).await, 2);
}
