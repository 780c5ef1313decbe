//! `Locked` with keys for types of other crates.

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRef, Path};
use axum::routing::post;
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_lock::{LockBy, LockKey, LockKeys, LockManager, LockScopeLayer, Locked};

type OrderPath = Path<(String, u64)>;

struct ByOrder;

impl LockBy<OrderPath> for ByOrder {
    fn lock_keys(Path((shop, order)): &OrderPath) -> LockKeys {
        LockKey::from_parts(("order", shop, order)).into()
    }
}

impl LockBy<String> for ByOrder {
    fn lock_keys(body: &String) -> LockKeys {
        LockKey::from_parts(["order", "body", body]).into()
    }
}

#[derive(Clone)]
struct State(LockManager);

impl FromRef<State> for LockManager {
    fn from_ref(state: &State) -> Self {
        state.0.clone()
    }
}

async fn by_path(Locked(Path((shop, order)), guard): Locked<OrderPath, ByOrder>) -> String {
    format!("{shop} {order} {}", guard.is_held())
}

async fn by_body(locked: Locked<String, ByOrder>) -> String {
    format!("{} {}", locked.len(), locked.1.is_held())
}

async fn status(app: &Router, path: &str) -> StatusCode {
    let request = Request::post(path).body(Body::from("7")).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test(start_paused = true)]
async fn locked_with_marker_holds_supplied_keys() {
    let locks = LockManager::in_memory();
    let app = Router::new()
        .route("/{shop}/{order}", post(by_path))
        .route("/body", post(by_body))
        .layer(LockScopeLayer::new())
        .with_state(State(locks.clone()));
    for (path, key) in [
        ("/berlin/7", ["order", "berlin", "7"]),
        ("/body", ["order", "body", "7"]),
    ] {
        let guard = locks.acquire(LockKey::from_parts(key)).await.unwrap();
        assert_eq!(status(&app, path).await, StatusCode::CONFLICT, "{path}");
        drop(guard);
        assert_eq!(status(&app, path).await, StatusCode::OK, "{path}");
    }
    assert_eq!(locks.snapshot().held, 0);
}
