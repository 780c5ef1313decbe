//! The dashboard of a process whose server fails.

use std::future::IntoFuture as _;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_lock::LockManager;
use tower_lock::dashboard::Dashboard;

use crate::support::engine::{PATIENCE, manager};
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);

fn open(locks: &LockManager) -> Router {
    Dashboard::new(locks.clone()).unprotected().router()
}

async fn ask(app: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn inspect(app: &Router, key: &str) -> (StatusCode, Value) {
    let body = Body::from(json!({ "key": key }).to_string());
    let request = Request::post("/api/v1/inspect").header("x-tower-lock", "1");
    let request = request.header("host", "h").header("origin", "http://h");
    let request = request.header("content-type", "application/json");
    ask(app, request.body(body).unwrap()).await
}

/// Returns the first frame for which `is_expected` returns `true`.
async fn frame(app: &Router, is_expected: impl Fn(&Value) -> bool) -> Value {
    let request = Request::get("/api/v1/stream").body(Body::empty()).unwrap();
    let mut stream = app.clone().oneshot(request).await.unwrap().into_body();
    let expected = async {
        loop {
            let data = stream.frame().await.unwrap().unwrap().into_data().unwrap();
            let text = std::str::from_utf8(&data).unwrap();
            let Some(frame) = text.strip_prefix("event: frame\ndata: ") else {
                continue;
            };
            let frame = serde_json::from_str(frame).unwrap();
            if is_expected(&frame) {
                return frame;
            }
        }
    };
    tokio::time::timeout(PATIENCE, expected).await.unwrap()
}

/// Returns what a frame contains about one part of a server.
fn part<'a>(frame: &'a Value, server: &str, part: &str) -> &'a Value {
    let mut servers = frame["servers"].as_array().unwrap().iter();
    let found = servers.find(|it| it["server"] == server && it["part"] == part);
    found.unwrap_or_else(|| panic!("no {part} in {frame:#}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_backend_is_no_other_holder() {
    let mut server = RedisServer::start();
    let here = manager(server.url(), LEASE).await;
    let there = manager(server.url(), LEASE).await;
    let app = open(&here);
    let own = here.acquire("own").await.unwrap();
    let other = there.acquire("other").await.unwrap();
    let waiter = tokio::spawn(here.acquire("other").wait(PATIENCE).into_future());
    let waits = |held_by: &'static str| {
        move |frame: &Value| {
            let mut rows = frame["top"].as_array().unwrap().iter();
            rows.any(|row| row["key"] == "other" && row["held_by"] == held_by)
        }
    };
    frame(&app, waits("elsewhere")).await;
    server.kill();
    frame(&app, waits("unavailable")).await;

    let (status, found) = inspect(&app, "own").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        (&found["held"], &found["held_by"], &found["queued"]),
        (&Value::Null, &json!("here"), &Value::Null)
    );
    assert_eq!(found["here"]["token"], own.fencing_token().to_string());
    let error = found["error"].as_str().unwrap();
    assert!(
        error.starts_with("lock backend is unavailable: "),
        "{error}"
    );

    let (status, found) = inspect(&app, "other").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        (&found["held"], &found["held_by"], &found["waiters"]),
        (&Value::Null, &json!("unavailable"), &json!(1))
    );
    waiter.abort();
    drop((own, other));
}

/// The server still grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_releases_are_incident_with_cause() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    let app = open(&locks);
    let address = server.address();
    let has = |is_up: bool| {
        let address = address.clone();
        move |frame: &Value| part(frame, &address, "releases")["up"] == is_up
    };
    frame(&app, has(true)).await;
    server.cli(&["ACL", "SETUSER", "default", "-hdel"]);
    let guard = locks.acquire("k").await.unwrap();
    guard.release().await.unwrap_err();
    let down = frame(&app, has(false)).await;
    let cause = part(&down, &address, "releases")["cause"].as_str().unwrap();
    assert!(
        cause.starts_with("lock backend refuses this client: "),
        "{cause}"
    );
    assert_eq!(part(&down, &address, "commands")["up"], true);
    let incident = format!("{address} releases is down: {cause}");
    // A frame has only the last ones, which may be those of other tests in this process.
    assert!(down["incidents"].is_array(), "{down:#}");
    let request = Request::get("/api/v1/incidents").body(Body::empty());
    let (_, all) = ask(&app, request.unwrap()).await;
    let mut incidents = all.as_array().unwrap().iter();
    assert!(incidents.any(|it| it["text"] == incident), "{all:#}");
    // The key stays held in the backend, and no process lists it.
    let (_, found) = inspect(&app, "k").await;
    assert_eq!(
        (&found["held"], &found["here"], &found["held_by"]),
        (&json!(true), &Value::Null, &json!("releasing"))
    );
    server.cli(&["ACL", "SETUSER", "default", "+hdel"]);
    frame(&app, has(true)).await;
}
