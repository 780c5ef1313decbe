//! One request over HTTP/1.1 and HTTP/2: both take one lock.

mod documented;
mod hosts;

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;

#[derive(Debug, Clone, Copy)]
enum Version {
    Http1,
    Http2,
}

const VERSIONS: [Version; 2] = [Version::Http1, Version::Http2];

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends a request in its own connection.
async fn send(version: Version, request: Request<Body>) -> (StatusCode, String) {
    let is_http2 = matches!(version, Version::Http2);
    let client = Client::builder(TokioExecutor::new())
        .http2_only(is_http2)
        .build_http();
    let response = client.request(request).await.unwrap();
    assert_eq!(response.version() == http::Version::HTTP_2, is_http2);
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}
