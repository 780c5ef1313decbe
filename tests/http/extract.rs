//! The axum extractors: `Locked`, `Held` and `Owner`.

use std::error::Error as _;

use axum::body::Body;
use axum::extract::{Extension, Form, FromRef, Json, Path, Query};
use axum::routing::{get, post};
use axum::{Router, middleware};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use static_assertions::assert_impl_all;
use tower::ServiceExt;
use tower_lock::rejection::{LockedRejection, MissingLayer};
use tower_lock::{
    Held, LockKey, LockKeys, LockLayer, LockManager, LockRejection, LockScopeLayer, LockTarget,
    Locked, Owner,
};

use crate::served::until;

assert_impl_all!(LockedRejection<MissingLayer>: std::error::Error, Send, Sync);
assert_impl_all!(MissingLayer: std::error::Error, Send, Sync);
assert_impl_all!(Locked<Json<Transfer>>: Send, Sync, std::fmt::Debug);

#[derive(Debug, Clone, Deserialize)]
struct Transfer {
    from: String,
    to: String,
}

impl LockTarget for Transfer {
    fn lock_keys(&self) -> LockKeys {
        LockKeys::from([account(&self.from), account(&self.to)])
    }
}

fn account(id: &str) -> LockKey {
    LockKey::from_parts(["account", id])
}

/// Routes for every extractor inside `Locked`, all with accounts 7 and 8.
fn app(locks: &LockManager) -> Router {
    async fn add_transfer(
        mut request: axum::extract::Request,
        next: middleware::Next,
    ) -> axum::response::Response {
        let (from, to) = ("7".to_owned(), "8".to_owned());
        request.extensions_mut().insert(Transfer { from, to });
        next.run(request).await
    }

    Router::new()
        .route(
            "/json",
            post(async |locked: Locked<Json<Transfer>>| show(&locked.1)),
        )
        .route(
            "/form",
            post(async |locked: Locked<Form<Transfer>>| show(&locked.1)),
        )
        .route(
            "/query",
            get(async |locked: Locked<Query<Transfer>>| show(&locked.1)),
        )
        .route(
            "/path/{from}/{to}",
            get(async |locked: Locked<Path<Transfer>>| show(&locked.1)),
        )
        .route(
            "/extension",
            get(async |locked: Locked<Extension<Transfer>>| show(&locked.1)),
        )
        .layer(middleware::from_fn(add_transfer))
        .layer(LockScopeLayer::new())
        .with_state(locks.clone())
}

fn show(held: &Held) -> String {
    assert!(held.is_held());
    held.keys()
        .map(LockKey::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

fn requests() -> Vec<Request<Body>> {
    let form = "application/x-www-form-urlencoded";
    let with_body = |path: &str, content_type: &str, body: &'static str| {
        let request = Request::post(path).header("content-type", content_type);
        request.body(Body::from(body)).unwrap()
    };
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    vec![
        with_body("/json", "application/json", r#"{"from":"7","to":"8"}"#),
        with_body("/form", form, "from=7&to=8"),
        get("/query?from=7&to=8"),
        get("/path/7/8"),
        get("/extension"),
    ]
}

async fn answer(app: &Router, request: Request<Body>) -> (StatusCode, String) {
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn ok(text: &str) -> (StatusCode, String) {
    (StatusCode::OK, text.to_owned())
}

fn get_request(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn locked_locks_keys_of_each_inner_extractor() {
    let locks = LockManager::in_memory();
    let app = app(&locks);
    for request in requests() {
        let path = request.uri().path().to_owned();
        assert_eq!(
            answer(&app, request).await,
            ok("account:7 account:8"),
            "{path}"
        );
    }
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test(start_paused = true)]
async fn locked_after_default_wait_returns_409() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(account("8")).await.unwrap();
    let app = app(&locks);
    for request in requests() {
        let start = tokio::time::Instant::now();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert!(response.headers().contains_key("retry-after"));
        let rejection = response.extensions().get::<LockRejection>().unwrap();
        assert!(rejection.error().is_busy());
        assert_eq!(start.elapsed().as_secs(), 5);
        // The keys are acquired all or none, so account 7 is free again.
        drop(locks.acquire(account("7")).no_wait().await.unwrap());
    }
}

#[tokio::test]
async fn disconnect_of_waiting_locked_leaves_no_trace() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(account("7")).await.unwrap();
    let mut waiting = app(&locks).oneshot(get_request("/path/7/8"));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert_eq!(locks.snapshot().waiting, 1);
    drop(waiting);
    drop(guard);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn inner_extractor_rejection_is_passed_on() {
    let locks = LockManager::in_memory();
    let request = Request::post("/json").body(Body::from("{}")).unwrap();
    let (status, _) = answer(&app(&locks), request).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let (status, _) = answer(&app(&locks), get_request("/query?from=7")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(locks.snapshot().is_idle());
}

#[tokio::test]
async fn empty_id_is_400() {
    let locks = LockManager::in_memory();
    let (status, body) = answer(&app(&locks), get_request("/query?from=&to=8")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body.contains("lock-key-invalid"), "{body}");
    let for_client = "a value that identifies the resource is empty";
    assert!(body.contains(for_client), "{body}");
}

#[tokio::test]
async fn locked_rejection_has_accepted_content_type() {
    let locks = LockManager::builder(tower_lock::Memory::new());
    let locks = locks.wait(std::time::Duration::ZERO).build().unwrap();
    let _guard = locks.acquire(account("7")).await.unwrap();
    let app = app(&locks);
    for mut request in requests() {
        request
            .headers_mut()
            .insert("accept", "text/plain".parse().unwrap());
        let (status, body) = answer(&app, request).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(body.starts_with("Resource busy: "), "{body}");
    }
}

#[tokio::test]
async fn manager_can_be_part_of_state() {
    #[derive(Clone)]
    struct State {
        locks: LockManager,
    }

    impl FromRef<State> for LockManager {
        fn from_ref(state: &State) -> Self {
            state.locks.clone()
        }
    }

    let locks = LockManager::in_memory();
    let app = Router::new()
        .route(
            "/",
            get(async |locked: Locked<Query<Transfer>>| show(&locked.1)),
        )
        .layer(LockScopeLayer::new())
        .with_state(State { locks });
    let answered = answer(&app, get_request("/?from=7&to=8")).await;
    assert_eq!(answered, ok("account:7 account:8"));
}

#[tokio::test]
async fn locked_under_layer_with_same_key_re_enters() {
    async fn handler(owner: Owner, held: Held, locked: Locked<Query<Transfer>>) -> String {
        assert_eq!(owner, held.owner());
        assert_eq!(owner, locked.1.owner());
        assert_eq!(
            held.fencing_token_for(&account("7")),
            locked.1.fencing_token_for(&account("7"))
        );
        held.hold_count().to_string()
    }

    let locks = LockManager::in_memory();
    let by_account = LockLayer::by_fn(locks.clone(), |_| account("7"));
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(by_account.all_methods())
        .with_state(locks);
    assert_eq!(answer(&app, get_request("/?from=7&to=8")).await, ok("2"));
}

#[tokio::test]
async fn acquire_in_handler_with_owner_re_enters() {
    let locks = LockManager::in_memory();
    let inner = locks.clone();
    let handler = async move |Locked(_, guard): Locked<Query<Transfer>>, owner: Owner| {
        let again = inner
            .acquire(account("7"))
            .owner(owner)
            .no_wait()
            .await
            .unwrap();
        assert!(inner.acquire(account("7")).no_wait().await.is_err());
        guard.release().await.unwrap();
        again.hold_count().to_string()
    };
    let app = Router::new()
        .route("/", get(handler))
        .layer(LockScopeLayer::new())
        .with_state(locks);
    assert_eq!(answer(&app, get_request("/?from=7&to=8")).await, ok("1"));
}

/// A closure that does not name its guard, and a body that streams, would release the lock before their work.
#[tokio::test]
async fn locked_without_scope_is_500_before_acquire() {
    async fn unlocked() -> Body {
        panic!("the handler runs without its lock")
    }
    let locks = LockManager::in_memory();
    // An acquire would wait for it, with 409.
    let _guard = locks.acquire([account("7"), account("8")]).await.unwrap();
    let app: Router = Router::new()
        .route(
            "/closure",
            get(|Locked(_, _guard): Locked<Query<Transfer>>| unlocked()),
        )
        .route(
            "/body",
            post(async |_: Locked<Json<Transfer>>| unlocked().await),
        )
        .with_state(locks.clone());
    let body = Request::post("/body").body(Body::from("{}")).unwrap();
    for request in [get_request("/closure?from=7&to=8"), body] {
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let rejection: &LockRejection = response.extensions().get().unwrap();
        assert!(rejection.problem_type().ends_with("lock-misconfigured"));
        let remedy = rejection.error().source().unwrap();
        assert!(remedy.downcast_ref::<MissingLayer>().is_some());
        let remedy = remedy.to_string();
        assert!(remedy.contains("add a `LockScopeLayer`"), "{remedy}");
    }
}

#[tokio::test]
async fn held_and_owner_without_lock_are_500() {
    let app: Router = Router::new()
        .route("/held", get(async |_: Held| ()))
        .route("/owner", get(async |_: Owner| ()));
    for path in ["/held", "/owner"] {
        let (status, body) = answer(&app, get_request(path)).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(body.contains("#lock-misconfigured"), "{body}");
    }
}

#[tokio::test]
async fn held_and_owner_can_be_optional() {
    async fn handler(held: Option<Held>, owner: Option<Owner>) -> String {
        assert_eq!(held.as_ref().map(Held::owner), owner);
        held.map_or("unlocked", |_| "locked").to_owned()
    }

    let app: Router = Router::new()
        .route("/", get(handler).post(handler))
        .route_layer(LockLayer::by_path(LockManager::in_memory()));
    assert_eq!(answer(&app, get_request("/")).await, ok("unlocked"));
    let write = Request::post("/").body(Body::empty()).unwrap();
    assert_eq!(answer(&app, write).await, ok("locked"));
}

#[tokio::test]
async fn rejection_source_is_error_inside() {
    let error = LockManager::in_memory().acquire("").await.unwrap_err();
    let message = error.to_string();
    let lock = LockRejection::from(error);
    assert_eq!(lock.source().unwrap().to_string(), message);
    let shown = lock.to_string();
    let lock = LockedRejection::<MissingLayer>::Lock(lock);
    assert_eq!(lock.source().unwrap().to_string(), shown);
    let inner = LockedRejection::Inner(std::io::Error::other("cut off"));
    assert_eq!(inner.source().unwrap().to_string(), "cut off");
}
