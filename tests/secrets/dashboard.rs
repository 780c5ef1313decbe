//! What the dashboard shows and reports.

use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_lock::dashboard::Dashboard;
use tower_lock::{ErrorKind, LockManager};

use crate::canary::{Canary, KEY, admit, assert_no_login, at};
use crate::observed::observed;
use crate::support::engine::SECOND;
use crate::support::redis_server::RedisServer;

/// Returns the headers and the body of a response, and of a stream its first two frames.
async fn ask(app: &Router, path: &str, body: Option<Value>) -> String {
    let request = match &body {
        Some(_) => Request::post(path),
        None => Request::get(path),
    };
    let request = request.header("host", "h").header("origin", "http://h");
    let request = request.header("content-type", "application/json");
    let request = request.header("x-tower-lock", "1");
    let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
    let response = app.clone().oneshot(request.body(body).unwrap()).await;
    let (head, mut body) = response.unwrap().into_parts();
    let mut text = format!("{} {:?} ", head.status, head.headers);
    // A stream begins with a line without a frame.
    for _ in 0..3 {
        let Some(part) = body.frame().await else {
            break;
        };
        let part = part.unwrap().into_data().unwrap();
        text.push_str(std::str::from_utf8(&part).unwrap());
    }
    assert_no_login(&text);
    text
}

/// Responses name keys and owners only where the page lists them. Logs, traces and metrics never do.
#[test]
fn dashboard_shows_no_login_and_logs_no_key() {
    let (canary, reported) = observed(async {
        let mut server = RedisServer::start();
        admit(&server);
        let backend = at(&server.url()).connect().await.unwrap();
        let locks = LockManager::builder(backend).build().unwrap();
        let canary = Canary::of(&[&locks]);
        let board = Dashboard::new(locks.clone()).unprotected();
        let app: Router = board.allow_force_release(|_| Ok(())).router();
        let guard = locks.acquire(KEY).await.unwrap();
        locks.acquire(KEY).no_wait().await.unwrap_err();
        let (shared, permits) = (format!("{KEY}:s"), format!("{KEY}:p"));
        let reader = locks.acquire(&shared).shared().await.unwrap();
        let permit = locks.acquire(&permits).permits(1).await.unwrap();
        for (owner, kind) in [
            (locks.new_owner(), ErrorKind::PermitsExhausted),
            (permit.owner(), ErrorKind::Upgrade),
        ] {
            let acquire = locks.acquire(&permits).owner(owner);
            let acquire = match kind {
                ErrorKind::PermitsExhausted => acquire.permits(1),
                _ => acquire,
            };
            let error = acquire.wait(SECOND).await.unwrap_err();
            assert_eq!(error.kind(), kind);
            canary.silent(&format!("{error} {error:?}"));
        }
        for (key, mode) in [(&shared, "shared"), (&permits, "permit")] {
            let body = json!({ "key": key });
            let found = ask(&app, "/api/v1/inspect", Some(body)).await;
            assert!(found.contains(&format!("\"mode\":\"{mode}\"")), "{found}");
        }
        for key in [&shared, &permits] {
            assert!(locks.force_release(key).await.unwrap());
        }
        assert!(!reader.is_held() && !permit.is_held());
        let key = json!({ "key": KEY });
        for path in ["/", "/api/v1/summary", "/api/v1/history"] {
            canary.silent(&ask(&app, path, None).await);
        }
        for path in [
            "/api/v1/stream",
            "/api/v1/holders",
            "/api/v1/holders?after=",
        ] {
            let listed = ask(&app, path, None).await;
            assert!(listed.contains(KEY), "{listed}");
        }
        let found = ask(&app, "/api/v1/inspect", Some(key.clone())).await;
        assert!(found.contains(&guard.owner().to_string()), "{found}");
        let release = async |owner: String| {
            let body = json!({ "key": KEY, "owner": owner, "reason": "the handler hangs" });
            ask(&app, "/api/v1/force-release", Some(body)).await
        };
        let released = release(guard.owner().to_string()).await;
        assert!(released.starts_with("200"), "{released}");
        canary.silent(&released);

        // Errors of the backend.
        server.kill();
        let found = ask(&app, "/api/v1/inspect", Some(key)).await;
        assert!(found.starts_with("503"), "{found}");
        // At most one release per second is admitted.
        tokio::time::sleep(SECOND).await;
        let failed = release(format!("{}:1", uuid::Uuid::new_v4())).await;
        assert!(failed.starts_with("503"), "{failed}");
        canary.silent(&failed);
        let down = ask(&app, "/api/v1/stream", None).await;
        assert!(down.contains("\"up\":false"), "{down}");
        canary
    });
    for expected in [
        "force release",
        "lock granted",
        "EVALSHA",
        "tower_lock_backend_up",
    ] {
        assert!(reported.contains(expected), "{expected} in {reported}");
    }
    canary.silent(&reported);
}
