//! The keys that the constructors of `LockLayer` read from a request.

use std::convert::Infallible;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_lock::keys::InvalidKey;
use tower_lock::{LockKey, LockKeys, LockLayer, LockManager};

const UUID: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

/// Sends a request to each path while the key is held, and returns the statuses.
async fn statuses<const N: usize>(
    app: impl Fn(LockManager) -> Router,
    key: LockKey,
    paths: [&str; N],
) -> [u16; N] {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key).await.unwrap();
    let app = app(locks);
    let mut statuses = [0; N];
    for (path, status) in paths.into_iter().zip(&mut statuses) {
        let request = Request::put(path).body(Body::empty()).unwrap();
        *status = app
            .clone()
            .oneshot(request)
            .await
            .unwrap()
            .status()
            .as_u16();
    }
    statuses
}

fn route(path: &str) -> Router {
    Router::new().route(path, any(async || ()))
}

#[tokio::test]
async fn parsed_parameter_has_one_key_for_all_spellings() {
    let numbers = |locks| {
        let layer = LockLayer::by_path_param_as::<u64>(locks, "id").no_wait();
        route("/orders/{id}").route_layer(layer)
    };
    let key = LockKey::from_parts(["id", "7"]);
    let paths = [
        "/orders/7",
        "/orders/007",
        "/orders/%37",
        "/orders/8",
        "/orders/x",
        "/orders/%FF",
    ];
    assert_eq!(
        statuses(numbers, key, paths).await,
        [409, 409, 409, 200, 400, 400]
    );

    let uuids = |locks| {
        let layer = LockLayer::by_path_param_as::<uuid::Uuid>(locks, "id").no_wait();
        route("/{id}").route_layer(layer)
    };
    let key = LockKey::from_parts(["id", UUID]);
    let upper = format!("/{}", UUID.to_uppercase());
    let simple = format!("/{}", UUID.replace('-', ""));
    let braced = format!("/%7B{UUID}%7D");
    assert_eq!(
        statuses(uuids, key, [&upper, &simple, &braced]).await,
        [409; 3]
    );
}

/// A name without the spaces around it, which can thus be empty.
struct Trimmed(String);

impl FromStr for Trimmed {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(Self(name.trim().to_owned()))
    }
}

impl Display for Trimmed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[tokio::test]
async fn empty_value_is_400_and_named_where_known() {
    let locks = LockManager::in_memory;
    let parsed = LockLayer::by_path_param_as::<Trimmed>(locks(), "shop");
    let parts = LockLayer::by_fn(locks(), |request| {
        LockKey::from_parts(["shop", request.uri.query().unwrap_or_default()])
    });
    let by_header = LockLayer::by_header(locks(), "x-shop");
    for (app, path, detail) in [
        (
            route("/{shop}").route_layer(parsed),
            "/%20",
            "the path parameter `shop` of the request is empty",
        ),
        (
            route("/").route_layer(LockLayer::by_query(locks(), "shop")),
            "/?shop=",
            "the query parameter `shop` of the request is empty",
        ),
        (
            route("/").route_layer(by_header),
            "/",
            "the header `x-shop` of the request is empty",
        ),
        // The source of a part is unknown.
        (
            route("/").route_layer(parts),
            "/?",
            "a value that identifies the resource is empty",
        ),
    ] {
        let request = Request::put(path).header("x-shop", "");
        let request = request.body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 400, "{path}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["detail"], detail);
    }
}

#[tokio::test]
async fn several_parameters_are_one_key_in_order_of_names() {
    let app = |locks| {
        let layer = LockLayer::by_path_params(locks, ["order", "shop"]).no_wait();
        route("/shops/{shop}/orders/{order}").route_layer(layer)
    };
    let key = LockKey::from_parts(["order", "7", "shop", "a@b"]);
    let paths = [
        "/shops/a%40b/orders/7",
        "/shops/a@b/orders/7?x",
        "/shops/7/orders/a@b",
        "/shops/a@b/orders/8",
    ];
    assert_eq!(statuses(app, key, paths).await, [409, 409, 200, 200]);
}

#[tokio::test]
async fn kind_replaces_names_of_parameters() {
    let order = |value: &str| LockKey::from_parts(["order", value]);
    let by_param = |locks| {
        let layer = LockLayer::by_path_param(locks, "id").kind("order");
        route("/{id}").route_layer(layer.no_wait())
    };
    assert_eq!(
        statuses(by_param, order("7"), ["/7", "/8"]).await,
        [409, 200]
    );
    let own = LockKey::from_parts(["id", "7"]);
    assert_eq!(statuses(by_param, own, ["/7"]).await, [200]);
    let parsed = |locks| {
        let layer = LockLayer::by_path_param_as::<u64>(locks, "id").kind("order");
        route("/{id}").route_layer(layer.no_wait())
    };
    assert_eq!(
        statuses(parsed, order("7"), ["/007", "/8"]).await,
        [409, 200]
    );
    let several = |locks| {
        let layer = LockLayer::by_path_params(locks, ["shop", "id"]).kind("order");
        route("/{id}/{shop}").route_layer(layer.no_wait())
    };
    let key = LockKey::from_parts(["order", "b", "7"]);
    assert_eq!(statuses(several, key, ["/7/b", "/b/7"]).await, [409, 200]);
    let by_query = |locks| {
        let layer = LockLayer::by_query(locks, "id").kind("order");
        route("/").route_layer(layer.no_wait())
    };
    assert_eq!(
        statuses(by_query, order("7"), ["/?id=7", "/?id=8"]).await,
        [409, 200]
    );
    let by_header = |locks| {
        let layer = LockLayer::by_header(locks, "host").kind("order");
        route("/").route_layer(layer.no_wait())
    };
    let of_host = ["http://a/", "http://b/"];
    assert_eq!(statuses(by_header, order("a"), of_host).await, [409, 200]);
}

#[test]
#[should_panic(expected = "invalid `kind`: it is empty")]
fn empty_kind_panics() {
    drop(LockLayer::by_query(LockManager::in_memory(), "id").kind(""));
}

#[tokio::test]
async fn closure_without_types_supplies_keys() {
    let key = || LockKey::new("all");
    let app = |locks| {
        let by_fn = LockLayer::by_fn(locks, |request| match request.uri.path() {
            "/locked" => Ok(Some(LockKeys::from(["all", "other"]))),
            "/open" => Ok(None),
            _ => Err(InvalidKey::Missing("name".into())),
        });
        route("/{path}").layer(by_fn.no_wait())
    };
    assert_eq!(
        statuses(app, key(), ["/locked", "/open", "/bad"]).await,
        [409, 200, 400]
    );

    let question_mark = |locks| {
        let by_fn = LockLayer::by_fn(locks, |request| {
            let missing = || InvalidKey::Missing("query".into());
            Ok(LockKey::new(request.uri.query().ok_or_else(missing)?))
        });
        route("/").layer(by_fn.no_wait())
    };
    assert_eq!(
        statuses(question_mark, key(), ["/?all", "/?one", "/"]).await,
        [409, 200, 400]
    );
}

#[tokio::test]
async fn skipped_request_passes_unlocked() {
    let app = |locks| {
        let layer = LockLayer::by_fn(locks, |_| LockKey::new("all"));
        let layer = layer.skip(|request| request.uri.path() == "/health");
        route("/{path}").layer(layer.no_wait())
    };
    let paths = ["/health", "/health?x", "/orders"];
    assert_eq!(
        statuses(app, LockKey::new("all"), paths).await,
        [200, 200, 409]
    );
}

/// A `LockTarget` with too many keys, and one without keys, are the client's: a body or path chose them.
#[tokio::test]
async fn number_of_keys_out_of_bounds_is_400() {
    for count in [0, 17] {
        let app = |locks| {
            let keys = move |_: &http::request::Parts| -> LockKeys {
                (0..count).map(|number: i32| number.to_string()).collect()
            };
            route("/").layer(LockLayer::by_fn(locks, keys))
        };
        assert_eq!(statuses(app, LockKey::new("all"), ["/"]).await, [400]);
    }
}

/// axum counts the handler of `any` as a fallback, as the documentation of `LockLayer` says.
#[test]
fn route_layer_on_any_panics_and_layer_does_not() {
    let layer = || LockLayer::by_path(LockManager::in_memory());
    let route_layer = std::panic::catch_unwind(|| {
        drop(any::<_, _, ()>(async || ()).route_layer(layer()));
    });
    assert!(route_layer.is_err());
    let router: Router = Router::new().route("/", any(async || ()).layer(layer()));
    drop(router);
}
