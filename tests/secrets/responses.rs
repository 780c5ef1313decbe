//! The responses that clients receive.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_lock::{LockLayer, LockManager};

use crate::canary::{Canary, KEY, admit, at};
use crate::support::engine::{PATIENCE, SECOND};
use crate::support::redis_server::RedisServer;

/// Returns the whole response of a layer around a handler, to a client that accepts this type.
async fn answer(locks: &LockManager, accept: &str, wait: Duration) -> String {
    let layer = LockLayer::by_header(locks.clone(), "key").wait(wait);
    let service = layer.layer(service_fn(|_: Request<String>| async {
        Ok::<_, Infallible>(Response::new("handled".to_owned()))
    }));
    let request = Request::post("/")
        .header("key", KEY)
        .header("accept", accept);
    // The content type of gRPC requests.
    let request = request.header("content-type", accept);
    let response = service.oneshot(request.body(String::new()).unwrap()).await;
    let (head, body) = response.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    format!(
        "{} {:?} {:?} {trailers:?}",
        head.status,
        head.headers,
        body.to_bytes()
    )
}

#[tokio::test]
async fn responses_name_no_lock_owner_or_store() {
    let mut server = RedisServer::start();
    admit(&server);
    let backend = at(&server.url()).connect().await.unwrap();
    let locks = LockManager::builder(backend).build().unwrap();
    let canary = Canary::of(&[&locks]);
    let forms = ["application/json", "text/plain", "application/grpc"];
    let address = server.address();
    let all = async |status: &str, wait: Duration| {
        for accept in forms {
            let answer = answer(&locks, accept, wait).await;
            canary.silent(&answer);
            assert!(!answer.contains(&address), "{answer}");
            let is_grpc = accept.contains("grpc");
            assert!(is_grpc || answer.starts_with(status), "{answer}");
        }
    };
    all("200", PATIENCE).await;
    let key = tower_lock::LockKey::from_parts(["key", KEY]);
    let guard = locks.acquire(key.clone()).await.unwrap();
    all("409", SECOND / 10).await;
    guard.release().await.unwrap();
    let foreign = format!("lock:{}", key.as_str());
    server.cli(&["SET", &foreign, "something"]);
    all("500", PATIENCE).await;
    server.kill();
    all("503", SECOND / 10).await;
}
