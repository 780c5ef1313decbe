//! The layer in one `ServiceBuilder` with the layers of tower-http, on a bare service, hyper, axum and tonic.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::routing::post;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, ORIGIN, REFERER, VARY};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_http::add_extension::AddExtensionLayer;
use tower_http::auth::{AddAuthorizationLayer, AsyncRequireAuthorizationLayer};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::decompression::{DecompressionLayer, RequestDecompressionLayer};
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::map_request_body::MapRequestBodyLayer;
use tower_http::map_response_body::MapResponseBodyLayer;
use tower_http::metrics::InFlightRequestsLayer;
use tower_http::metrics::in_flight_requests::InFlightRequestsCounter;
use tower_http::normalize_path::NormalizePathLayer;
use tower_http::on_early_drop::OnEarlyDropLayer;
use tower_http::propagate_header::PropagateHeaderLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::sensitive_headers::{
    SetSensitiveHeadersLayer, SetSensitiveRequestHeadersLayer, SetSensitiveResponseHeadersLayer,
};
use tower_http::set_header::request::{SetMultipleRequestHeadersLayer, SetRequestHeaderLayer};
use tower_http::set_header::response::{SetMultipleResponseHeadersLayer, SetResponseHeaderLayer};
use tower_http::set_status::SetStatusLayer;
use tower_http::timeout::{
    RequestBodyDeadlineLayer, RequestBodyTimeoutLayer, ResponseBodyDeadlineLayer,
    ResponseBodyTimeoutLayer, TimeoutLayer,
};
use tower_http::trace::TraceLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;
use tower_lock::{Held, LockLayer, LockManager};

use crate::served::{WINDOW, over_http2, path_key};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The documented order: authentication, CORS and timeouts outside of the lock.
macro_rules! documented {
    ($locks:expr) => {
        ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(CorsLayer::permissive())
            .layer(TimeoutLayer::with_status_code(
                StatusCode::REQUEST_TIMEOUT,
                Duration::from_secs(30),
            ))
            .layer(ValidateRequestHeaderLayer::has_header_value("x-user", "ada").unwrap())
            .layer(CompressionLayer::new())
            .layer(LockLayer::by_path($locks).no_wait())
    };
}

async fn handler<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    let held = request.extensions().get::<Held>().is_some();
    Ok(Response::new(
        if held { "locked" } else { "unlocked" }.into(),
    ))
}

pub(crate) fn request<B: Default>(user: bool) -> Request<B> {
    let request = Request::post("http://localhost/orders/42");
    let request = if user {
        request.header("x-user", "ada")
    } else {
        request
    };
    request.body(B::default()).unwrap()
}

/// Checks that a documented stack locks, rejects while the lock is held, and rejects requests without the header.
/// `send` sends one request with or without it.
async fn assert_locks(locks: &LockManager, send: impl AsyncFn(bool) -> (StatusCode, String)) {
    assert_eq!(send(true).await, (StatusCode::OK, "locked".to_owned()));
    let guard = locks.acquire(path_key("/orders/42")).await.unwrap();
    let (status, body) = send(true).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(body.contains("resource-busy"), "{body}");
    let (status, _) = send(false).await;
    assert_ne!(status, StatusCode::CONFLICT);
    assert!(status.is_client_error(), "{status}");
    guard.release().await.unwrap();
    assert_eq!(send(true).await.0, StatusCode::OK);
}

async fn read<B: http_body::Body>(response: Response<B>) -> (StatusCode, String)
where
    B::Error: std::fmt::Debug,
{
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn documented_stack_on_bare_service_locks() {
    let locks = LockManager::in_memory();
    let service = documented!(locks.clone()).service_fn(handler::<Full<Bytes>>);
    assert_locks(&locks, async |user| {
        read(service.clone().oneshot(request(user)).await.unwrap()).await
    })
    .await;
}

pub(crate) async fn over_http1(
    address: SocketAddr,
) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let handshake = hyper::client::conn::http1::handshake(stream).await;
    let (sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn documented_stack_on_hyper_locks() {
    let locks = LockManager::in_memory();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = documented!(locks.clone()).service_fn(handler::<hyper::body::Incoming>);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                // The end of a connection is the client's business.
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    assert_locks(&locks, async |user| {
        let mut client = over_http1(address).await;
        read(client.send_request(request(user)).await.unwrap()).await
    })
    .await;
    assert_locks(&locks, async |user| {
        let (mut client, _socket) = over_http2::<Full<Bytes>>(address, WINDOW).await;
        read(client.send_request(request(user)).await.unwrap()).await
    })
    .await;
}

#[tokio::test]
async fn documented_stack_on_axum_locks() {
    let locks = LockManager::in_memory();
    let app: axum::Router = axum::Router::new()
        .route("/orders/{id}", post(async |_: Held| "locked"))
        .layer(documented!(locks.clone()));
    assert_locks(&locks, async |user| {
        read(app.clone().oneshot(request::<Body>(user)).await.unwrap()).await
    })
    .await;
}

/// A gRPC service that answers each call with an empty success.
#[derive(Clone)]
struct Orders;

impl tonic::server::NamedService for Orders {
    const NAME: &'static str = "orders.Orders";
}

impl Service<Request<tonic::body::Body>> for Orders {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        assert!(request.extensions().get::<Held>().is_some());
        ready(Ok(tonic::Status::ok("").into_http()))
    }
}

#[tokio::test]
async fn documented_stack_on_tonic_locks() {
    const PATH: &str = "/orders.Orders/Update";
    let locks = LockManager::in_memory();
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
    let incoming = incoming.unwrap();
    let address = incoming.local_addr().unwrap();
    let server = tonic::transport::Server::builder()
        .layer(documented!(locks.clone()).into_inner())
        .add_service(Orders)
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    let (mut client, _socket) = over_http2::<Full<Bytes>>(address, WINDOW).await;
    let mut call = async |user: &str| {
        let request = Request::post(format!("http://{address}{PATH}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header("x-user", user)
            .body(Full::default())
            .unwrap();
        let response = client.send_request(request).await.unwrap();
        let grpc = response.headers().get("grpc-status").cloned();
        (response.status(), grpc)
    };
    let ok = |status| (StatusCode::OK, Some(HeaderValue::from_static(status)));
    assert_eq!(call("ada").await, ok("0"));
    let guard = locks.acquire(path_key(PATH)).await.unwrap();
    assert_eq!(call("ada").await, ok("10"));
    let (status, _) = call("eve").await;
    assert!(status.is_client_error(), "{status}");
    drop(guard);
    assert_eq!(call("ada").await, ok("0"));
}

/// Every layer of tower-http. First those whose response body has no `Default`, or one of its own: the others
/// must get along with the body of the lock.
macro_rules! every_layer {
    ($builder:expr) => {
        $builder
            .layer(MapResponseBodyLayer::new(Body::new))
            .layer(TraceLayer::new_for_http())
            .layer(InFlightRequestsLayer::new(InFlightRequestsCounter::new()))
            .layer(OnEarlyDropLayer::builder())
            .layer(CatchPanicLayer::new())
            .layer(ResponseBodyTimeoutLayer::new(Duration::from_secs(30)))
            .layer(ResponseBodyDeadlineLayer::new(Duration::from_secs(30)))
            .layer(RequestDecompressionLayer::new())
            .layer(MapRequestBodyLayer::new(Body::new))
            .layer(RequestBodyTimeoutLayer::new(Duration::from_secs(30)))
            .layer(MapRequestBodyLayer::new(Body::new))
            .layer(RequestBodyDeadlineLayer::new(Duration::from_secs(30)))
            .layer(MapRequestBodyLayer::new(Body::new))
            .layer(RequestBodyLimitLayer::new(1_000))
            .layer(MapRequestBodyLayer::new(Body::new))
            .layer(NormalizePathLayer::trim_trailing_slash())
            .layer(SetRequestIdLayer::new(REQUEST_ID, MakeRequestUuid))
            .layer(PropagateRequestIdLayer::new(REQUEST_ID))
            .layer(SetSensitiveHeadersLayer::new([AUTHORIZATION]))
            .layer(SetSensitiveRequestHeadersLayer::new([AUTHORIZATION]))
            .layer(SetSensitiveResponseHeadersLayer::new([AUTHORIZATION]))
            .layer(CorsLayer::permissive())
            .layer(CsrfLayer::new())
            .layer(SetResponseHeaderLayer::overriding(
                HeaderName::from_static("x-frame-options"),
                HeaderValue::from_static("DENY"),
            ))
            .layer(SetRequestHeaderLayer::if_not_present(
                ACCEPT,
                HeaderValue::from_static("*/*"),
            ))
            .layer(SetMultipleResponseHeadersLayer::appending(vec![
                (VARY, HeaderValue::from_static("accept")).into(),
                (VARY, HeaderValue::from_static("origin")).into(),
            ]))
            .layer(SetMultipleRequestHeadersLayer::if_not_present(vec![
                (ACCEPT, HeaderValue::from_static("*/*")).into(),
                (REFERER, HeaderValue::from_static("/")).into(),
            ]))
            .layer(PropagateHeaderLayer::new(ORIGIN))
            .layer(AddAuthorizationLayer::bearer("token"))
            .layer(AsyncRequireAuthorizationLayer::new(authorize))
            .layer(AddExtensionLayer::new(7))
            .layer(TimeoutLayer::with_status_code(
                StatusCode::REQUEST_TIMEOUT,
                Duration::from_secs(30),
            ))
            .layer(ValidateRequestHeaderLayer::accept("text/plain"))
            .layer(FollowRedirectLayer::new())
            .layer(SetStatusLayer::new(StatusCode::ACCEPTED))
            .layer(CompressionLayer::new())
            .layer(DecompressionLayer::new())
    };
}

async fn authorize<A, B>(request: Request<A>) -> Result<Request<A>, Response<B>> {
    Ok(request)
}

async fn in_every_layer<S, B>(service: S) -> (StatusCode, String)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error: std::fmt::Debug>,
    B: http_body::Body<Error: std::fmt::Debug>,
{
    read(service.oneshot(request(true)).await.unwrap()).await
}

#[tokio::test]
async fn every_tower_http_layer_outside_locks() {
    let lock = LockLayer::by_path(LockManager::in_memory());
    let service = every_layer!(ServiceBuilder::new())
        .layer(lock)
        .service_fn(handler);
    let answer = in_every_layer(service).await;
    assert_eq!(answer, (StatusCode::ACCEPTED, "locked".to_owned()));
}

#[tokio::test]
async fn every_tower_http_layer_inside_locks() {
    let lock = LockLayer::by_path(LockManager::in_memory());
    let service = every_layer!(ServiceBuilder::new().layer(lock)).service_fn(handler);
    let answer = in_every_layer(service).await;
    assert_eq!(answer, (StatusCode::ACCEPTED, "locked".to_owned()));
}
