//! Known traps between a lock, axum and a real connection.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use crate::served::{Call, Frames, Gate, Stream, assert_waits, is_locked, path_key, until};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query};
use axum::routing::{any, get, post};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout as timeout_after;
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;
use tower_lock::{Held, LockKey, LockKeys, LockLayer, LockManager, LockTarget, Locked};

fn request(method: Method, path: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    request.body(Body::empty()).unwrap()
}

async fn status(app: &Router, method: Method, path: &str) -> StatusCode {
    let response = app.clone().oneshot(request(method, path)).await.unwrap();
    response.status()
}

async fn text(app: &Router, path: &str) -> String {
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
fn gated(locks: &LockManager) -> (Router, UnboundedReceiver<Call>) {
    let (gate, calls) = Gate::new();
    let handler =
        async move |request: Request<Body>| gate.handle(request).await.unwrap().map(Body::new);
    let app = Router::new()
        .route("/gate", any(handler))
        .route_layer(LockLayer::by_path(locks.clone()));
    (app, calls)
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends the head of a request on its own connection.
async fn send(address: SocketAddr, head: &str) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}\r\nhost: localhost\r\n\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
}

/// Reads until this text has arrived.
async fn read_until(connection: &mut TcpStream, end: &str) -> String {
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

fn streaming() -> (Response<Stream>, Frames) {
    let (body, frames) = Stream::new();
    (Response::new(body), frames)
}

#[tokio::test]
async fn client_disconnect_while_waiting_leaves_queue() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let guard = locks.acquire(path_key("/gate")).await.unwrap();
    let address = serve(app).await;
    let client = send(address, "POST /gate HTTP/1.1").await;
    until(|| locks.snapshot().waiting == 1).await;
    drop(client);
    until(|| locks.snapshot().waiting == 0).await;
    drop(guard);
    until(|| locks.snapshot().is_idle()).await;
    assert!(calls.try_recv().is_err(), "the handler ran for nobody");
}

#[tokio::test]
async fn client_disconnect_in_handler_releases_lock() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let address = serve(app).await;
    let client = send(address, "POST /gate HTTP/1.1").await;
    let call = calls.recv().await.unwrap();
    assert!(is_locked(&locks));
    drop(client);
    until(|| call.is_abandoned() && !is_locked(&locks)).await;
}

#[tokio::test]
async fn client_disconnect_in_body_releases_lock() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let address = serve(app).await;
    let mut client = send(address, "POST /gate HTTP/1.1").await;
    let (response, frames) = streaming();
    calls.recv().await.unwrap().answer(response);
    frames.data("first");
    read_until(&mut client, "first").await;
    assert!(is_locked(&locks));
    drop(client);
    until(|| frames.is_abandoned() && !is_locked(&locks)).await;
}

#[tokio::test]
async fn streaming_body_holds_lock_until_sent() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let address = serve(app).await;
    let mut client = send(address, "POST /gate HTTP/1.1").await;
    let (response, frames) = streaming();
    calls.recv().await.unwrap().answer(response);
    for part in ["one", "two", "three"] {
        frames.data(part);
        read_until(&mut client, part).await;
        assert!(is_locked(&locks));
    }
    drop(frames);
    read_until(&mut client, "0\r\n\r\n").await;
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn body_in_memory_keeps_content_length() {
    let app = Router::new()
        .route("/", get(async || "hello"))
        .route_layer(LockLayer::by_path(LockManager::in_memory()));
    let address = serve(app).await;
    let mut client = send(address, "GET / HTTP/1.1").await;
    let answer = read_until(&mut client, "hello").await;
    assert!(answer.contains("content-length: 5\r\n"), "{answer}");
    let mut client = send(address, "HEAD / HTTP/1.1").await;
    let answer = read_until(&mut client, "\r\n\r\n").await;
    assert!(answer.contains("content-length: 5\r\n"), "{answer}");
}

#[tokio::test]
async fn head_request_to_stream_is_complete_at_head() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let mut head = Box::pin(app.oneshot(request(Method::HEAD, "/gate")));
    assert_waits(&mut head).await;
    let (response, frames) = streaming();
    calls.recv().await.unwrap().answer(response);
    frames.data("never sent");
    let response = head.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn preflight_does_not_wait_for_lock() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    let preflight = || {
        let request = Request::options("/a")
            .header("origin", "https://example.org")
            .header("access-control-request-method", "POST");
        request.body(Body::empty()).unwrap()
    };
    // CORS is outside the lock.
    let app: Router = Router::new()
        .route("/a", post(async || ()))
        .route_layer(LockLayer::by_path(locks.clone()).no_wait())
        .layer(CorsLayer::permissive());
    let response = app.oneshot(preflight()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    // The app's own OPTIONS handler is inside the lock.
    let app: Router = Router::new()
        .route("/a", post(async || ()).options(async || ()))
        .route_layer(LockLayer::by_path(locks).no_wait().writes_only());
    let response = app.clone().oneshot(preflight()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(status(&app, Method::POST, "/a").await, StatusCode::CONFLICT);
}

async fn panics() -> &'static str {
    tokio::task::yield_now().await;
    panic!("on purpose");
}

#[tokio::test]
async fn panic_caught_outside_lock_releases_it() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route("/", get(panics))
        .route_layer(LockLayer::by_path(locks.clone()))
        .layer(CatchPanicLayer::new());
    let answered = status(&app, Method::GET, "/").await;
    assert_eq!(answered, StatusCode::INTERNAL_SERVER_ERROR);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn panic_caught_inside_lock_releases_it() {
    let locks = LockManager::in_memory();
    let layers = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(CatchPanicLayer::new());
    let app: Router = Router::new().route("/", get(panics)).route_layer(layers);
    let answered = status(&app, Method::GET, "/").await;
    assert_eq!(answered, StatusCode::INTERNAL_SERVER_ERROR);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn uncaught_panic_releases_lock() {
    let locks = LockManager::in_memory();
    let app = Router::new()
        .route("/", get(panics))
        .route_layer(LockLayer::by_path(locks.clone()));
    let mut client = send(serve(app).await, "GET / HTTP/1.1").await;
    let mut nothing = Vec::new();
    drop(client.read_to_end(&mut nothing).await);
    assert!(nothing.is_empty());
    until(|| locks.snapshot().is_idle()).await;
}

fn timeout(millis: u64) -> TimeoutLayer {
    let millis = Duration::from_millis(millis);
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, millis)
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_lock_ends_handler_and_releases() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route("/", get(async || pending::<()>().await))
        .route_layer(LockLayer::by_path(locks.clone()))
        .layer(timeout(1_000));
    assert_eq!(
        status(&app, Method::GET, "/").await,
        StatusCode::GATEWAY_TIMEOUT
    );
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_lock_covers_wait() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/")).await.unwrap();
    let app = |wait| -> Router {
        Router::new()
            .route("/", get(async || ()))
            .route_layer(LockLayer::by_path(locks.clone()).wait(Duration::from_millis(wait)))
            .layer(timeout(1_000))
    };
    // With a wait shorter than the timeout, the layer responds.
    assert_eq!(
        status(&app(500), Method::GET, "/").await,
        StatusCode::CONFLICT
    );
    // A longer wait is cancelled and leaves the queue.
    assert_eq!(
        status(&app(2_000), Method::GET, "/").await,
        StatusCode::GATEWAY_TIMEOUT
    );
    assert_eq!(locks.snapshot().waiting, 0);
    drop(guard);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test(start_paused = true)]
async fn timeout_inside_lock_covers_only_handler() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/")).await.unwrap();
    let layers = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(timeout(1_000));
    let app: Router = Router::new()
        .route("/", get(async || pending::<()>().await))
        .route_layer(layers);
    let start = tokio::time::Instant::now();
    let release = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(guard);
    };
    let (answered, ()) = tokio::join!(status(&app, Method::GET, "/"), release);
    assert_eq!(answered, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(start.elapsed().as_secs(), 4);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn nested_layers_on_one_key_share_lock() {
    let locks = LockManager::in_memory();
    let layer = || LockLayer::by_path(locks.clone()).no_wait();
    let inner = Router::new()
        .route("/b", get(async |held: Held| held.hold_count().to_string()))
        .route_layer(layer());
    let app: Router = Router::new().nest("/a", inner).route_layer(layer());
    assert_eq!(text(&app, "/a/b").await, "2");
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn nested_layers_on_two_keys_show_inner_one() {
    let locks = LockManager::in_memory();
    let inspected = locks.clone();
    let handler = async move |held: Held| {
        assert_eq!(inspected.snapshot().held, 2);
        held.key().as_str().to_owned()
    };
    let app: Router = Router::new()
        .route("/accounts/{account}", get(handler))
        .route_layer(LockLayer::by_path_param(locks.clone(), "account"))
        .route_layer(LockLayer::by_path(locks.clone()));
    assert_eq!(text(&app, "/accounts/7").await, "account:7");
    until(|| locks.snapshot().is_idle()).await;
    for key in [
        path_key("/accounts/7"),
        LockKey::from_parts(["account", "7"]),
    ] {
        let _guard = locks.acquire(key).await.unwrap();
        let mut waiting = Box::pin(app.clone().oneshot(request(Method::GET, "/accounts/7")));
        assert_waits(&mut waiting).await;
    }
}

#[derive(serde::Deserialize)]
struct Account {
    account: String,
}

impl LockTarget for Account {
    fn lock_keys(&self) -> LockKeys {
        LockKey::from_parts(["account", &self.account]).into()
    }
}

#[tokio::test]
async fn extractors_of_one_handler_share_owner() {
    async fn handler(
        Locked(_, path): Locked<Path<Account>>,
        Locked(_, query): Locked<Query<Account>>,
    ) -> String {
        assert_eq!(path.owner(), query.owner());
        format!("{} {}", path.hold_count(), query.hold_count())
    }

    let locks = LockManager::in_memory();
    let app = Router::new()
        .route("/accounts/{account}", get(handler))
        .with_state(locks.clone());
    assert_eq!(text(&app, "/accounts/7?account=7").await, "2 2");
    assert_eq!(text(&app, "/accounts/7?account=8").await, "1 1");
    until(|| locks.snapshot().is_idle()).await;
}

/// Returns the statuses of requests to these paths while the lock of `held` is held.
async fn statuses<const N: usize>(held: &str, paths: [&str; N]) -> [u16; N] {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key(held)).await.unwrap();
    let app: Router = Router::new()
        .route("/{*path}", get(async || ()))
        .route_layer(LockLayer::by_path(locks).no_wait());
    let mut statuses = [0; N];
    for (path, answered) in paths.into_iter().zip(&mut statuses) {
        *answered = status(&app, Method::GET, path).await.as_u16();
    }
    statuses
}

#[tokio::test]
async fn encoded_slash_is_slash() {
    let paths = ["/a%2Fb", "/a%2fb", "/a/b", "/ab"];
    assert_eq!(statuses("/a%2Fb", paths).await, [409, 409, 409, 200]);
    assert_eq!(statuses("/a/b", paths).await, [409, 409, 409, 200]);
}

#[tokio::test]
async fn encoded_character_is_the_character() {
    let paths = ["/A", "/%41", "/a", "/%61"];
    assert_eq!(statuses("/A", paths).await, [409, 409, 200, 200]);
    let paths = ["/a@b:1", "/a%40b%3A1", "/a%40b:1", "/a%2540b:1"];
    assert_eq!(statuses("/a@b:1", paths).await, [409, 409, 409, 200]);
    let paths = ["/ü", "/%c3%BC", "/u"];
    assert_eq!(statuses("/ü", paths).await, [409, 409, 200]);
}

#[tokio::test]
async fn slash_at_end_is_ignored() {
    let paths = ["/a", "/a/", "/a?x", "/a/?x", "/b/"];
    assert_eq!(statuses("/a", paths).await, [409, 409, 409, 409, 200]);
}

#[tokio::test]
async fn upgraded_connection_does_not_hold_lock() {
    let locks = LockManager::in_memory();
    let (upgraded, mut is_upgraded) = tokio::sync::mpsc::unbounded_channel();
    let handler = async move |mut request: Request<Body>| {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move { drop(upgraded.send(upgrade.await.unwrap())) });
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "echo")
            .body(Body::empty())
            .unwrap()
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(LockLayer::by_path(locks.clone()));
    let head = "GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo";
    let mut client = send(serve(app).await, head).await;
    read_until(&mut client, "101 Switching Protocols").await;
    let _tunnel = is_upgraded.recv().await.unwrap();
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn graceful_shutdown_rejects_queue_and_keeps_holder() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let server = tokio::spawn(server.into_future());

    let mut holder = send(address, "POST /gate HTTP/1.1").await;
    let call = calls.recv().await.unwrap();
    let mut queued = send(address, "POST /gate HTTP/1.1").await;
    until(|| locks.snapshot().waiting == 1).await;

    stop.send(()).unwrap();
    let manager = locks.clone();
    let shutdown = tokio::spawn(async move { manager.shutdown(Duration::from_secs(60)).await });
    let answer = read_until(&mut queued, "shutting-down").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    call.finish();
    assert!(
        read_until(&mut holder, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert!(shutdown.await.unwrap().is_idle());
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn ready_service_is_the_called_one() {
    // A concurrency limit panics if it is called before it was ready.
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/")).await.unwrap();
    let layers = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(ConcurrencyLimitLayer::new(2));
    let app: Router = Router::new().route("/", get(async || ()).layer(layers));
    let mut first = Box::pin(status(&app, Method::GET, "/"));
    let mut second = Box::pin(status(&app, Method::GET, "/"));
    assert_waits(&mut first).await;
    assert_waits(&mut second).await;
    drop(guard);
    let answered = tokio::join!(first, second);
    assert_eq!(answered, (StatusCode::OK, StatusCode::OK));
}

#[tokio::test]
async fn key_in_nested_router_is_original_path() {
    let locks = LockManager::in_memory();
    let inner = Router::new()
        .route(
            "/{id}",
            get(async |held: Held| held.key().as_str().to_owned()),
        )
        .route_layer(LockLayer::by_path(locks));
    let app: Router = Router::new().nest("/v1/orders", inner);
    assert_eq!(text(&app, "/v1/orders/42").await, "/v1/orders/42");
}

#[tokio::test]
async fn nested_router_sees_outer_path_parameters() {
    let locks = LockManager::in_memory();
    let inner = Router::new()
        .route(
            "/close",
            get(async |held: Held| held.key().as_str().to_owned()),
        )
        .route_layer(LockLayer::by_path_param(locks, "account"));
    let app: Router = Router::new().nest("/accounts/{account}", inner);
    assert_eq!(text(&app, "/accounts/a%20b/close").await, "account:a b");
}

#[tokio::test]
async fn path_parameter_without_utf8_is_400() {
    let locks = LockManager::in_memory();
    let app: Router = Router::new()
        .route("/accounts/{account}", get(async || ()))
        .route_layer(LockLayer::by_path_param(locks, "account"));
    assert_eq!(
        status(&app, Method::GET, "/accounts/7").await,
        StatusCode::OK
    );
    assert_eq!(
        status(&app, Method::GET, "/accounts/%FF").await,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn route_layer_locks_for_405_and_not_for_404() {
    let locks = LockManager::in_memory();
    let _guards = (
        locks.acquire(path_key("/a")).await.unwrap(),
        locks.acquire(path_key("/nowhere")).await.unwrap(),
    );
    let layer = || LockLayer::by_path(locks.clone()).no_wait();
    let router = || Router::new().route("/a", get(async || ()));
    let on_routes: Router = router().route_layer(layer());
    assert_eq!(
        status(&on_routes, Method::POST, "/a").await,
        StatusCode::CONFLICT
    );
    assert_eq!(
        status(&on_routes, Method::GET, "/nowhere").await,
        StatusCode::NOT_FOUND
    );
    let on_all: Router = router().layer(layer());
    assert_eq!(
        status(&on_all, Method::GET, "/nowhere").await,
        StatusCode::CONFLICT
    );
    let on_handler: Router = Router::new().route("/a", get(async || ()).route_layer(layer()));
    assert_eq!(
        status(&on_handler, Method::POST, "/a").await,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(
        status(&on_handler, Method::GET, "/a").await,
        StatusCode::CONFLICT
    );
}
