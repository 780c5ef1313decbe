//! Mistakes of the program: 500, one event per layer, a count per request, and never the inner service.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower::{Layer, ServiceExt};
use tower_lock::{Error, ErrorKind, LockKey, LockLayer, LockManager, LockRejection};
use tracing_subscriber::filter::LevelFilter;

use crate::support::log::Log;

async fn unlocked() -> StatusCode {
    panic!("the inner service runs without its lock")
}

/// Returns the status, the kind of the rejection, and the body.
async fn send(app: &Router, path: &str) -> (StatusCode, Option<ErrorKind>, String) {
    let request = Request::post(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let rejection = response.extensions().get::<LockRejection>();
    let (status, kind) = (response.status(), rejection.map(LockRejection::kind));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

/// Routers that are wrong, and what the event says about each.
fn wrong_routers() -> [(Router, &'static str, &'static str); 7] {
    let locks = LockManager::in_memory;
    let route = |path: &str| Router::new().route(path, get(unlocked).post(unlocked));
    let by_id = || LockLayer::by_path_param(locks(), "id");
    let twice = Router::new()
        .nest("/shops/{id}", route("/orders/{id}"))
        .route_layer(by_id());
    [
        (
            route("/orders/{order}").route_layer(by_id()),
            "/orders/7",
            "the route `/orders/{order}` has no path parameter `id`",
        ),
        (
            route("/orders/{order}").layer(by_id()),
            "/orders/7",
            "the route `/orders/{order}` has no path parameter `id`",
        ),
        (
            route("/orders/{order}").layer(by_id().read_body_first(1_000, Duration::from_secs(1))),
            "/orders/7",
            "the route `/orders/{order}` has no path parameter `id`",
        ),
        (
            route("/orders/{order}").layer(LockLayer::by_path_param_as::<u64>(locks(), "id")),
            "/orders/7",
            "has no path parameter `id`",
        ),
        (
            route("/shops/{shop}").layer(LockLayer::by_path_params(locks(), ["shop", "order"])),
            "/shops/7",
            "has no path parameter `order`",
        ),
        (
            twice,
            "/shops/7/orders/8",
            "the route `/shops/{id}/orders/{id}` has the path parameter `id` twice",
        ),
        (
            route("/orders").layer(LockLayer::by_extension::<LockKey>(locks())),
            "/orders",
            "the request has no extension of type",
        ),
    ]
}

fn logged(run: impl FnOnce()) -> String {
    let log = Log::default();
    log.record(LevelFilter::TRACE, run);
    log.text()
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Returns how often each outcome was counted. The counts about servers include those of other tests.
fn counted(run: impl FnOnce()) -> Vec<(String, u64)> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, run);
    let mut counts = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let outcome = key
            .key()
            .labels()
            .next()
            .filter(|label| label.key() != "server")
            .map(|label| label.value().to_owned());
        if let (Some(outcome), DebugValue::Counter(count @ 1..)) = (outcome, value) {
            counts.push((outcome, count));
        }
    }
    counts
}

#[test]
fn wrong_program_is_500_logged_once_and_counted() {
    for (router, path, problem) in wrong_routers() {
        let mut counts = Vec::new();
        let log = logged(|| {
            counts = counted(move || {
                block_on(async {
                    for _ in 0..3 {
                        let (status, kind, body) = send(&router, path).await;
                        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
                        assert_eq!(kind, Some(ErrorKind::Misconfigured));
                        assert!(body.contains("lock-misconfigured"), "{body}");
                        assert!(!body.contains(problem), "{body}");
                    }
                });
                // The end of its manager reports the counts.
                drop(router);
            });
        });
        assert_eq!(counts, [("misconfigured".to_owned(), 3)]);
        let mut errors = log.lines().filter(|line| line.contains("ERROR"));
        let error = errors.next().unwrap_or_default();
        assert!(
            error.contains("lock layer misconfigured") && error.contains(problem),
            "{log}"
        );
        assert_eq!(errors.next(), None, "{log}");
    }
}

#[test]
fn each_wrong_route_of_layer_is_logged_once() {
    let layer = LockLayer::by_path_param(LockManager::in_memory(), "id");
    let router = Router::new()
        .route("/orders/{order}", get(unlocked).post(unlocked))
        .route("/shops/{shop}", get(unlocked).post(unlocked))
        .layer(layer);
    let log = logged(|| {
        block_on(async {
            for path in ["/orders/7", "/orders/8", "/shops/7"].repeat(2) {
                let (status, ..) = send(&router, path).await;
                assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
            }
        });
    });
    for route in ["/orders/{order}", "/shops/{shop}"] {
        let route = format!("route=\"{route}\"");
        assert_eq!(log.matches(&route).count(), 1, "{log}");
    }
}

/// Sends two requests to each path, and returns the warnings about kinds.
fn warnings(router: Router, paths: &[&str]) -> Vec<String> {
    let log = logged(|| {
        block_on(async {
            for path in paths.repeat(2) {
                let (status, ..) = send(&router, path).await;
                assert_eq!(status, StatusCode::OK, "{path}");
            }
        });
    });
    let lines = log.lines().filter(|line| line.contains("WARN"));
    lines.map(str::to_owned).collect()
}

#[test]
fn one_kind_on_routes_of_two_resources_is_one_warning() {
    let route = |path: &str| Router::new().route(path, get(async || ()).post(async || ()));
    let locks = LockManager::in_memory();
    let by_id = || LockLayer::by_path_param(locks.clone(), "id");
    // Each route has its own layer, or all have one. Sub-resources have the kind of their resource.
    let each = route("/orders/{id}").route_layer(by_id());
    let each = each.merge(route("/orders/{id}/ship").route_layer(by_id()));
    let paths = ["/orders/7", "/orders/7/ship", "/customers/7"];
    assert_eq!(warnings(each.clone(), &paths[..2]), [""; 0]);
    let each = each.merge(route("/customers/{id}").route_layer(by_id()));
    let [warning] = &warnings(each, &paths)[..] else {
        panic!("one warning per kind");
    };
    assert!(
        warning.contains("one kind of lock key on two routes"),
        "{warning}"
    );
    for field in [
        "kind=\"id\"",
        "route=\"/customers/{id}\"",
        "other_route=\"/orders/{id}\"",
    ] {
        assert!(warning.contains(field), "{warning}");
    }
    let other = LockManager::in_memory();
    let all = route("/a/{id}").merge(route("/b/{id}"));
    let all = all.route_layer(LockLayer::by_path_param_as::<u64>(other, "id"));
    assert_eq!(warnings(all, &["/a/7", "/b/7"]).len(), 1);
    // One segment in front of the parameter, on two routes.
    let other = LockManager::in_memory();
    let all = route("/a/items/{id}").merge(route("/b/items/{id}"));
    let all = all.route_layer(LockLayer::by_path_param(other, "id"));
    assert_eq!(warnings(all, &["/a/items/7", "/b/items/7"]).len(), 1);
}

#[test]
fn own_kind_and_other_manager_are_no_warning() {
    let route = |path: &str| Router::new().route(path, get(async || ()).post(async || ()));
    let locks = LockManager::in_memory();
    let by_id = LockLayer::by_path_param(locks.clone(), "id");
    let other = LockLayer::by_path_param(LockManager::in_memory(), "id");
    let app = route("/a/{id}")
        .route_layer(by_id.clone())
        .merge(route("/b/{id}").route_layer(other))
        .merge(route("/c/{id}").route_layer(by_id.kind("order")))
        .merge(route("/d/{id}").layer(LockLayer::by_path(locks)));
    let paths = ["/a/7", "/b/7", "/c/7", "/d/7"];
    assert_eq!(warnings(app, &paths), [""; 0]);
}

/// The layer rejects nothing, and still reports the mistake.
#[test]
fn observe_only_runs_wrong_program_and_logs_it_once() {
    let layer = LockLayer::by_path_param(LockManager::in_memory(), "id").observe_only();
    let ran = get(async || "ran").post(async || "ran");
    let router = Router::new()
        .route("/orders/{order}", ran)
        .route_layer(layer);
    let mut counts = Vec::new();
    let log = logged(|| {
        counts = counted(|| {
            block_on(async {
                for _ in 0..3 {
                    let (status, kind, body) = send(&router, "/orders/7").await;
                    assert_eq!((status, kind, &*body), (StatusCode::OK, None, "ran"));
                }
                drop(router);
            });
        });
    });
    counts.sort();
    let count = |name: &str| (name.to_owned(), 3);
    assert_eq!(counts, [count("misconfigured"), count("observe_only")]);
    assert_eq!(log.matches("lock layer misconfigured").count(), 1, "{log}");
    assert_eq!(log.matches("request would be rejected").count(), 3, "{log}");
}

#[test]
fn layer_around_router_is_500_with_its_remedy() {
    let locked = LockLayer::by_path_param(LockManager::in_memory(), "id")
        .all_methods()
        .layer(Router::new().route("/{id}", get(unlocked)));
    let log = logged(|| {
        let request = Request::get("/7").body(Body::empty()).unwrap();
        let response = block_on(locked.oneshot(request)).unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    });
    assert!(log.contains("put the layer on its routes"), "{log}");
}

#[test]
fn unmatched_request_is_404_without_fallback() {
    let locks = LockManager::in_memory;
    let route = || Router::new().route("/orders/{id}", get(async || ()).post(async || ()));
    let fallback = || route().fallback(unlocked);
    let by_id = || LockLayer::by_path_param(locks(), "id");
    let apps = [
        route().layer(by_id()),
        fallback().layer(by_id()),
        fallback().layer(LockLayer::by_path_param_as::<u64>(locks(), "id")),
        fallback().layer(LockLayer::by_path_params(locks(), ["id"])),
        Router::new().nest("/nested", fallback().layer(by_id())),
        Router::new().nest_service("/nested", fallback().layer(by_id())),
    ];
    let log = logged(|| {
        block_on(async {
            for app in apps {
                for path in ["/nowhere", "/nested/nowhere", "/orders/7/x"] {
                    let (status, kind, _) = send(&app, path).await;
                    assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
                    assert!(matches!(kind, None | Some(ErrorKind::NoRoute)));
                }
                let (first, ..) = send(&app, "/orders/7").await;
                let (nested, ..) = send(&app, "/nested/orders/7").await;
                assert!(
                    [first, nested].contains(&StatusCode::OK),
                    "{first} {nested}"
                );
            }
        });
    });
    assert!(!log.contains("ERROR"), "{log}");
}

/// The handler waits for its own request. The log has the remedy, and the response has not.
#[test]
fn acquire_without_owner_logs_remedy() {
    async fn handler(State(locks): State<LockManager>) -> Result<(), Error> {
        let again = locks.acquire(LockKey::from_path("/orders/7")).no_wait();
        again.await.map(drop)
    }
    let locks = LockManager::in_memory();
    let app = Router::new()
        .route("/orders/{id}", post(handler))
        .layer(LockLayer::by_path(locks.clone()))
        .with_state(locks);
    let remedy = "in a handler use `LockScope::acquire` or `.owner(..)`";
    let log = logged(|| {
        let (status, _, body) = block_on(send(&app, "/orders/7"));
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(body.contains("lock-failed-in-handler"), "{body}");
        assert!(!body.contains(remedy), "{body}");
    });
    let event = log.lines().find(|line| line.contains("lock not acquired"));
    assert!(event.is_some_and(|event| event.contains(remedy)), "{log}");
}

/// It passes the layer, so it needs no key.
#[test]
fn safe_unmatched_request_reaches_fallback() {
    let by_id = || LockLayer::by_path_param(LockManager::in_memory(), "id");
    let route = Router::new().route("/orders/{id}", get(async || ()).post(async || ()));
    let route = route.fallback(async || StatusCode::IM_A_TEAPOT);
    let answer = |app: Router, method: &Method| {
        let request = Request::builder().method(method).uri("/nowhere");
        let response = block_on(app.oneshot(request.body(Body::empty()).unwrap())).unwrap();
        let rejection = response.extensions().get::<LockRejection>();
        (response.status(), rejection.map(LockRejection::kind))
    };
    let passes = (StatusCode::IM_A_TEAPOT, None);
    let rejected = (StatusCode::NOT_FOUND, Some(ErrorKind::NoRoute));
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        assert_eq!(answer(route.clone().layer(by_id()), &method), passes);
        for layer in [by_id().all_methods(), by_id().permits(1)] {
            assert_eq!(answer(route.clone().layer(layer), &method), rejected);
        }
    }
    assert_eq!(answer(route.layer(by_id()), &Method::DELETE), rejected);
}

#[test]
fn impossible_parameter_name_panics() {
    let locks = LockManager::in_memory;
    let panics = |layer: &dyn Fn()| {
        let layer = std::panic::AssertUnwindSafe(layer);
        std::panic::catch_unwind(layer).is_err()
    };
    for name in ["", ":id", "{id}", "*path", "{*path}", "a/b"] {
        let param = || drop(LockLayer::by_path_param(locks(), name));
        let parsed = || drop(LockLayer::by_path_param_as::<u64>(locks(), name));
        let several = || drop(LockLayer::by_path_params(locks(), ["id", name]));
        assert!(
            panics(&param) && panics(&parsed) && panics(&several),
            "{name}"
        );
    }
    for names in [&[][..], &["id", "id"]] {
        let several = || drop(LockLayer::by_path_params(locks(), names.to_vec()));
        assert!(panics(&several), "{names:?}");
    }
}
