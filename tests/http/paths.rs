//! The key of `by_path` against the parameters that axum's router makes of random paths and routes.

use axum::Router;
use axum::body::Body;
use axum::extract::RawPathParams;
use axum::routing::any;
use http::{Request, StatusCode, Uri};
use http_body_util::BodyExt;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tower::ServiceExt;
use tower_lock::{LockKey, LockLayer, LockManager};

/// Enough for each kind of route, prefix and spelling to meet.
const CASES: u32 = 2_000;

/// A segment of a route: literal text, then a parameter or none.
#[derive(Debug, Clone)]
struct Segment {
    literal: &'static str,
    has_param: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Nesting {
    None,
    Router,
    Service,
}

#[derive(Debug, Clone)]
struct Route {
    segments: Vec<Segment>,
    has_wildcard: bool,
    nesting: Nesting,
    /// The number of segments that the outer router removes.
    prefix: usize,
}

impl Route {
    fn pattern(&self, from: usize, to: usize) -> String {
        let mut pattern = String::new();
        for (index, segment) in self.segments.iter().enumerate().take(to).skip(from) {
            pattern += "/";
            pattern += segment.literal;
            if segment.has_param {
                pattern += &format!("{{p{index}}}");
            }
        }
        pattern
    }

    fn app(&self, layer: Option<&LockManager>) -> Router {
        let locked = |router: Router| match layer {
            Some(locks) => router.layer(LockLayer::by_path(locks.clone()).no_wait()),
            None => router,
        };
        let is_nested = self.nesting != Nesting::None;
        let prefix = if is_nested {
            self.prefix.min(self.segments.len())
        } else {
            0
        };
        let mut inner = self.pattern(prefix, self.segments.len());
        if self.has_wildcard {
            inner += "/{*rest}";
        }
        if inner.is_empty() {
            inner += "/";
        }
        let inner = Router::new().route(&inner, any(show));
        let prefix = self.pattern(0, prefix);
        match self.nesting {
            _ if prefix.is_empty() => locked(inner),
            Nesting::None => locked(inner),
            Nesting::Router => Router::new().nest(&prefix, locked(inner)),
            Nesting::Service => locked(Router::new().nest_service(&prefix, inner)),
        }
    }
}

async fn show(params: RawPathParams) -> String {
    format!("{params:?}")
}

fn routes() -> impl Strategy<Value = Route> {
    let segment = prop_oneof![
        Just(("a", false)),
        Just(("b", false)),
        Just(("", true)),
        Just(("a", true)),
        Just(("x-", true)),
    ];
    let segment = segment.prop_map(|(literal, has_param)| Segment { literal, has_param });
    let nesting = prop_oneof![
        Just(Nesting::None),
        Just(Nesting::Router),
        Just(Nesting::Service)
    ];
    let segments = prop::collection::vec(segment, 0..4);
    let route = (segments, prop::bool::ANY, nesting, 1..3_usize);
    route.prop_map(|(segments, has_wildcard, nesting, prefix)| Route {
        segments,
        has_wildcard,
        nesting,
        prefix,
    })
}

/// How a path spells one character of a parameter.
fn spelling() -> impl Strategy<Value = u8> {
    0..4_u8
}

fn spell(value: &str, spellings: &[u8]) -> String {
    let mut spelled = String::new();
    for (index, c) in value.chars().enumerate() {
        let bytes = c.to_string().into_bytes();
        match spellings[index % spellings.len()] {
            0 => spelled.extend(bytes.iter().map(|byte| format!("%{byte:02x}"))),
            1 => spelled.extend(bytes.iter().map(|byte| format!("%{byte:02X}"))),
            _ => spelled.push(c),
        }
    }
    spelled
}

#[derive(Debug, Clone)]
struct Values {
    params: Vec<String>,
    rest: String,
}

fn values() -> impl Strategy<Value = Values> {
    // The long ones are longer than a key.
    let text = || prop_oneof![20 => "[ab@:.é%/+;=~*]{1,4}", 1 => "[ab%é]{500,700}"];
    let params = prop::collection::vec(text(), 4);
    (params, text()).prop_map(|(params, rest)| Values { params, rest })
}

/// What stands before the path, and after it: the forms of a target, of which the handler sees the path.
fn target() -> impl Strategy<Value = (&'static str, &'static str)> {
    let origins = prop_oneof![
        3 => Just(""),
        1 => Just("http://localhost"),
        1 => Just("https://user@example.org:8443")
    ];
    let queries = prop_oneof![3 => Just(""), 1 => Just("?"), 1 => Just("?a=/../%2F")];
    (origins, queries)
}

fn path(route: &Route, values: &Values, spellings: &[u8], end: &str) -> String {
    let mut path = String::new();
    for (index, segment) in route.segments.iter().enumerate() {
        path += "/";
        path += segment.literal;
        if segment.has_param {
            path += &spell(&values.params[index], &spellings[index..]);
        }
    }
    if route.has_wildcard {
        path += "/";
        path += &spell(&values.rest, spellings);
    }
    if path.is_empty() {
        path += "/";
    }
    path + end
}

async fn send(app: &Router, path: &Uri) -> (StatusCode, String) {
    let request = Request::post(path.clone()).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Returns `true` if both paths reach the handler with the same parameters.
async fn same_parameters_take_one_lock(route: &Route, first: &Uri, second: &Uri) -> bool {
    let open = route.app(None);
    let reached = send(&open, first).await;
    if reached.0 != StatusCode::OK || reached != send(&open, second).await {
        return false;
    }
    let locks = LockManager::in_memory();
    let app = route.app(Some(&locks));
    let key = LockKey::from_path(first.path());
    if key.validate().is_err() {
        assert_eq!(
            send(&app, first).await.0,
            StatusCode::BAD_REQUEST,
            "{first}"
        );
        return false;
    }
    let _guard = locks.acquire(key).await.unwrap();
    for path in [first, second] {
        let status = send(&app, path).await.0;
        let is_kept_out = matches!(status, StatusCode::CONFLICT | StatusCode::BAD_REQUEST);
        assert!(
            is_kept_out,
            "{route:?}: {path} is another lock than {first}"
        );
    }
    true
}

#[test]
fn same_route_parameters_take_same_lock() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let same = std::cell::Cell::new(0);
    let spellings = || prop::collection::vec(spelling(), 8);
    let end = || prop_oneof![6 => Just(""), 1 => Just("/"), 1 => Just("%2F"), 1 => Just("//"), 1 => Just("/.")];
    let others = prop_oneof![3 => Just(None), 1 => values().prop_map(Some)];
    let spelled = || (spellings(), end(), target());
    let case = (routes(), values(), others, spelled(), spelled());
    let mut runner = TestRunner::new(Config {
        cases: CASES,
        ..Config::default()
    });
    let outcome = runner.run(&case, |(route, values, others, a, b)| {
        let others = others.unwrap_or_else(|| values.clone());
        let uri = |values, (spellings, end, (origin, query)): (Vec<u8>, _, _)| {
            format!("{origin}{}{query}", path(&route, values, &spellings, end)).parse::<Uri>()
        };
        let (first, second) = (uri(&values, a), uri(&others, b));
        if let (Ok(first), Ok(second)) = (first, second)
            && runtime.block_on(same_parameters_take_one_lock(&route, &first, &second))
        {
            same.set(same.get() + 1);
        }
        Ok(())
    });
    outcome.unwrap();
    assert!(
        same.get() > CASES / 10,
        "only {} pairs of paths",
        same.get()
    );
}

/// `nest_service` serves its prefix with and without a slash at the end, and the inner router does not see it.
#[tokio::test]
async fn slash_after_nested_prefix_is_ignored() {
    let route = Route {
        segments: vec![Segment {
            literal: "",
            has_param: true,
        }],
        has_wildcard: false,
        nesting: Nesting::Service,
        prefix: 1,
    };
    for (first, second) in [("/7", "/7/"), ("/7%2F", "/7%2f/")] {
        let (first, second) = (first.parse().unwrap(), second.parse().unwrap());
        assert!(same_parameters_take_one_lock(&route, &first, &second).await);
    }
}
