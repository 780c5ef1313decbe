//! A service with a dashboard.

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;
use tower_lock::LockManager;
use tower_lock::dashboard::Dashboard;

pub(crate) const MOUNT: &str = "/ops/locks";
pub(crate) const HOST: &str = "ops.example.com";

/// Every route, with the method that it accepts. The last one does not exist.
pub(crate) const ROUTES: [(&str, &str); 9] = [
    ("GET", ""),
    ("GET", "/api/v1/summary"),
    ("GET", "/api/v1/history"),
    ("GET", "/api/v1/incidents"),
    ("GET", "/api/v1/stream"),
    ("GET", "/api/v1/holders"),
    ("POST", "/api/v1/inspect"),
    ("POST", "/api/v1/force-release"),
    ("GET", "/api/v1/nothing"),
];

pub(crate) fn open(locks: &LockManager) -> Router {
    served(Dashboard::new(locks.clone()).unprotected())
}

pub(crate) fn served(board: Dashboard) -> Router {
    Router::new().nest(MOUNT, board.router())
}

pub(crate) fn get(path: &str) -> Request<Body> {
    let request = Request::get(format!("{MOUNT}{path}")).header("host", HOST);
    request.body(Body::empty()).unwrap()
}

/// Returns the request that the page sends.
pub(crate) fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(format!("{MOUNT}{path}")).header("host", HOST);
    let request = request.header("origin", format!("https://{HOST}"));
    let request = request.header("content-type", "application/json");
    let request = request.header("x-tower-lock", "1");
    let request = request.header("sec-fetch-site", "same-origin");
    request.body(Body::from(body.to_string())).unwrap()
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Response {
    app.clone().oneshot(request).await.unwrap()
}

/// Returns the status and the body. A body that is no JSON is text.
pub(crate) async fn ask(app: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = send(app, request).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    let json = serde_json::from_slice(&body);
    (status, json.unwrap_or(Value::String(text)))
}

/// An open stream of frames.
pub(crate) struct Stream(Body);

impl Stream {
    pub(crate) async fn open(app: &Router) -> Self {
        let response = send(app, get("/api/v1/stream")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut stream = Self(response.into_body());
        assert_eq!(stream.text().await.unwrap(), "retry: 500\n\n");
        stream
    }

    async fn text(&mut self) -> Option<String> {
        let frame = self.0.frame().await?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().into()).unwrap())
    }

    /// Returns the next frame, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let text = self.text().await?;
        let data = text.strip_prefix("event: frame\ndata: ").unwrap();
        let data = data.strip_suffix("\n\n").unwrap();
        assert!(!data.contains('\n'), "{data}");
        Some(serde_json::from_str(data).unwrap())
    }
}
