//! The key of `by_path` beside middleware that rewrites the path: outside of it, inside, and in a nested service.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::RawPathParams;
use axum::response::Response;
use axum::routing::any;
use http::{Request, StatusCode, Uri};
use http_body_util::BodyExt;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt};
use tower_http::normalize_path::NormalizePathLayer;
use tower_lock::keys::ByPath;
use tower_lock::{LockKey, LockLayer, LockManager};

const CASES: u32 = 1_000;

type App = BoxCloneSyncService<Request<Body>, Response, Infallible>;

/// A layer of tower-http that rewrites paths, or none.
#[derive(Debug, Clone, Copy)]
enum Rewriting {
    None,
    Trim,
    Append,
}

const REWRITINGS: [Rewriting; 3] = [Rewriting::None, Rewriting::Trim, Rewriting::Append];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// Around all middleware.
    Outside,
    /// Around the middleware of the inner router.
    Router,
    /// Inside of all middleware.
    Route,
}

const PLACES: [Place; 3] = [Place::Outside, Place::Router, Place::Route];

/// How the outer router contains the inner one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Nesting {
    None,
    Service,
    /// Without the removal of the prefix.
    Route,
}

const NESTINGS: [Nesting; 3] = [Nesting::None, Nesting::Service, Nesting::Route];

#[derive(Debug, Clone, Copy)]
struct Stack {
    outer: Rewriting,
    inner: Rewriting,
    nesting: Nesting,
    lock: Place,
}

fn rewritten<S>(service: S, by: Rewriting) -> App
where
    S: Service<Request<Body>, Response = Response, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let layer = match by {
        Rewriting::None => return App::new(service),
        Rewriting::Trim => NormalizePathLayer::trim_trailing_slash(),
        Rewriting::Append => NormalizePathLayer::append_trailing_slash(),
    };
    App::new(layer.layer(service))
}

fn locked(app: App, layer: Option<LockLayer<ByPath>>) -> App {
    match layer {
        Some(layer) => App::new(layer.layer(app).map_response(|it| it.map(Body::new))),
        None => app,
    }
}

fn routes(prefix: &str) -> Router {
    let show = |name: &'static str| {
        any(async move |params: RawPathParams| {
            let params = params.iter().map(|(name, value)| format!("{name}={value}"));
            format!("{name} {:?}", params.collect::<Vec<_>>())
        })
    };
    // One handler with and without a slash at its end.
    Router::new()
        .route(&format!("{prefix}/"), show("root"))
        .route(&format!("{prefix}/{{id}}"), show("id"))
        .route(&format!("{prefix}/{{id}}/"), show("id"))
        .route(&format!("{prefix}/a/{{id}}"), show("a"))
        .route(&format!("{prefix}/a/{{id}}/"), show("a"))
        .route(&format!("{prefix}/b/{{*rest}}"), show("rest"))
        // Nested routers as well, whose routes have parameters of both.
        .nest(
            &format!("{prefix}/c/{{shop}}"),
            Router::new().route("/{id}", show("nested")),
        )
}

impl Stack {
    fn app(self, locks: Option<&LockManager>) -> App {
        let layer = |place: Place| {
            let locks = locks.filter(|_| place == self.lock)?;
            Some(LockLayer::by_path(locks.clone()).all_methods().no_wait())
        };
        let prefix = match self.nesting {
            Nesting::Route => "/p",
            _ => "",
        };
        let mut inner = routes(prefix);
        if let Some(layer) = layer(Place::Route) {
            inner = inner.route_layer(layer);
        }
        let inner = locked(rewritten(inner, self.inner), layer(Place::Router));
        let app = match self.nesting {
            Nesting::None => inner,
            Nesting::Service => App::new(Router::new().nest_service("/p", inner)),
            Nesting::Route => App::new(
                Router::new()
                    .route_service("/p", inner.clone())
                    .route_service("/p/{*any}", inner),
            ),
        };
        locked(rewritten(app, self.outer), layer(Place::Outside))
    }
}

fn stacks() -> impl Strategy<Value = Stack> {
    let one = || prop::sample::select(&REWRITINGS[..]);
    let nesting = prop::sample::select(&NESTINGS[..]);
    let lock = prop::sample::select(&PLACES[..]);
    (one(), one(), nesting, lock).prop_map(|(outer, inner, nesting, lock)| Stack {
        outer,
        inner,
        nesting,
        lock,
    })
}

/// Random paths, with slashes where no client should send them.
fn paths() -> impl Strategy<Value = String> {
    let slashes =
        || prop_oneof![4 => Just("/"), 2 => Just("//"), 1 => Just("///"), 1 => Just("%2F")];
    let names = || prop::sample::select(&["a", "b", "c", "7", "%37", "*"][..]);
    let segments = prop::collection::vec((slashes(), names()), 0..4);
    let start = prop_oneof![1 => Just(""), 1 => Just("/p"), 1 => Just("//p")];
    let end = prop_oneof![3 => Just(""), 2 => Just("/"), 1 => Just("//"), 1 => Just("%2f")];
    let path = (start, segments, end).prop_map(|(start, segments, end)| {
        let segments = segments
            .iter()
            .map(|(slashes, name)| format!("{slashes}{name}"));
        start.to_owned() + &segments.collect::<String>() + end
    });
    prop_oneof![50 => path, 2 => Just("*".to_owned())]
}

async fn send(app: &App, path: &Uri) -> (StatusCode, String) {
    let request = Request::options(path.clone()).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Checks that the paths that reach one handler with the same parameters take one lock. Returns the number of pairs.
async fn one_resource_has_one_lock(stack: Stack, paths: &[Uri]) -> usize {
    let open = stack.app(None);
    let mut resources = BTreeMap::<String, BTreeSet<&str>>::new();
    for path in paths {
        let (status, resource) = send(&open, path).await;
        if status == StatusCode::OK {
            resources.entry(resource).or_default().insert(path.path());
        }
    }
    let mut pairs = 0;
    for spellings in resources.values().filter(|it| it.len() > 1) {
        let locks = LockManager::in_memory();
        let app = stack.app(Some(&locks));
        let first = *spellings.first().unwrap();
        let _guard = locks.acquire(LockKey::from_path(first)).await.unwrap();
        for path in spellings {
            let status = send(&app, &path.parse().unwrap()).await.0;
            assert_eq!(
                status,
                StatusCode::CONFLICT,
                "{stack:?}: {path} beside {first}"
            );
        }
        pairs += spellings.len() - 1;
    }
    pairs
}

#[test]
fn rewritten_spellings_of_resource_take_one_lock() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let pairs = Cell::new(0);
    let mut runner = TestRunner::new(Config {
        cases: CASES,
        ..Config::default()
    });
    let case = (stacks(), prop::collection::vec(paths(), 60));
    let outcome = runner.run(&case, |(stack, paths)| {
        let paths: Vec<Uri> = paths.iter().filter_map(|path| path.parse().ok()).collect();
        pairs.set(pairs.get() + runtime.block_on(one_resource_has_one_lock(stack, &paths)));
        Ok(())
    });
    outcome.unwrap();
    assert!(pairs.get() > 2_000, "only {} pairs of paths", pairs.get());
}

async fn assert_one_lock(stack: Stack, paths: [&str; 4]) {
    let paths = paths.map(|path| path.parse().unwrap());
    assert_eq!(one_resource_has_one_lock(stack, &paths).await, 3);
}

#[tokio::test]
async fn lock_outside_normalized_path_has_one_key() {
    let stack = Stack {
        outer: Rewriting::Trim,
        inner: Rewriting::None,
        nesting: Nesting::None,
        lock: Place::Outside,
    };
    assert_one_lock(stack, ["/a/7", "/a/7/", "//a/7", "///a/7//"]).await;
}

/// There, `by_path` reads the path that the client sent.
#[tokio::test]
async fn lock_in_nested_normalized_path_has_one_key() {
    let stack = Stack {
        outer: Rewriting::None,
        inner: Rewriting::Trim,
        nesting: Nesting::Service,
        lock: Place::Route,
    };
    assert_one_lock(stack, ["/p/a/7", "/p/a/7/", "/p//a/7", "/p///a/7//"]).await;
}
