//! Several locks for one request.

use axum::Router;
use axum::extract::{Path, Query};
use axum::routing::get;
use http::Method;
use tower::ServiceExt;
use tower_lock::{
    Held, LockKey, LockKeys, LockLayer, LockManager, LockScopeLayer, LockTarget, Locked,
};

use super::support::{request, text};
use crate::served::{assert_waits, path_key, until};

#[tokio::test]
async fn nested_layers_on_one_key_share_lock() {
    let locks = LockManager::in_memory();
    let layer = || LockLayer::by_path(locks.clone()).all_methods().no_wait();
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
        .route_layer(LockLayer::by_path_param(locks.clone(), "account").all_methods())
        .route_layer(LockLayer::by_path(locks.clone()).all_methods());
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
        .layer(LockScopeLayer::new())
        .with_state(locks.clone());
    assert_eq!(text(&app, "/accounts/7?account=7").await, "2 2");
    assert_eq!(text(&app, "/accounts/7?account=8").await, "1 1");
    until(|| locks.snapshot().is_idle()).await;
}
