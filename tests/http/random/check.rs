//! A right program under each layer, and what must hold for each request to it.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{OriginalUri, Query, RawPathParams};
use axum::routing::any;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use tower::ServiceExt;
use tower_lock::{Held, InvalidKey, LockKey, LockLayer, LockManager};

/// The head of a request, and its body.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Head {
    fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::from(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// The kinds of layers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    Path,
    Param,
    ParamAs,
    Params,
    Header,
    Query,
    Function,
}

pub(crate) const ALL: [By; 7] = [
    By::Path,
    By::Param,
    By::ParamAs,
    By::Params,
    By::Header,
    By::Query,
    By::Function,
];

/// What a handler sees of a request that runs.
struct Sight {
    held: Option<Held>,
    path: String,
    id: Option<String>,
    query: Vec<(String, String)>,
    headers: HeaderMap,
}

impl Sight {
    /// Returns the parts of the key that this request must hold.
    fn due(&self, by: By) -> Vec<Vec<u8>> {
        let named = |name: &str, value: &[u8]| vec![name.into(), value.to_vec()];
        let id = || self.id.clone().unwrap().into_bytes();
        match by {
            By::Path => {
                let path: Vec<u8> = percent_encoding::percent_decode_str(&self.path).collect();
                let end = path.iter().rposition(|&byte| byte != b'/');
                vec![end.map_or(b"/".to_vec(), |last| path[..=last].to_vec())]
            }
            By::Param | By::Params => named("id", &id()),
            By::ParamAs => {
                let id: u64 = String::from_utf8(id()).unwrap().parse().unwrap();
                named("id", id.to_string().as_bytes())
            }
            By::Header | By::Function => named("x-id", self.headers["x-id"].as_bytes()),
            By::Query => {
                let mut values = self.query.iter().filter(|(name, _)| name == "id");
                let value = values.next().unwrap().1.clone();
                assert!(values.next().is_none());
                named("id", value.as_bytes())
            }
        }
    }
}

type Seen = Arc<Mutex<Option<Sight>>>;

async fn show(
    seen: Seen,
    held: Option<Held>,
    OriginalUri(uri): OriginalUri,
    params: Result<RawPathParams, RawPathParamsRejection>,
    query: Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> StatusCode {
    let id = params
        .as_ref()
        .ok()
        .and_then(|params| params.iter().find(|(name, _)| *name == "id"));
    *seen.lock().unwrap() = Some(Sight {
        held,
        path: uri.path().to_owned(),
        id: id.map(|(_, value)| value.to_owned()),
        query: query.0,
        headers,
    });
    StatusCode::NO_CONTENT
}

fn locked(router: Router, by: By, locks: &LockManager) -> Router {
    let locks = locks.clone();
    match by {
        By::Path => router.layer(LockLayer::by_path(locks).no_wait()),
        By::Param => router.layer(LockLayer::by_path_param(locks, "id").no_wait()),
        By::ParamAs => router.layer(LockLayer::by_path_param_as::<u64>(locks, "id").no_wait()),
        By::Params => router.layer(LockLayer::by_path_params(locks, ["id"]).no_wait()),
        By::Header => router.layer(LockLayer::by_header(locks, "x-id").no_wait()),
        By::Query => router.layer(LockLayer::by_query(locks, "id").no_wait()),
        By::Function => {
            let by_fn = LockLayer::by_fn(locks, |request| {
                let missing = || InvalidKey::Missing {
                    what: "header `x-id`".into(),
                };
                let id = request.headers.get("x-id").ok_or_else(missing)?;
                Ok(LockKey::from_parts([b"x-id", id.as_bytes()]))
            });
            router.layer(by_fn.no_wait())
        }
    }
}

async fn unlocked() -> StatusCode {
    panic!("the fallback runs unlocked")
}

fn app(by: By, locks: &LockManager, seen: &Seen) -> Router {
    let handler = || {
        let seen = seen.clone();
        any(move |held, uri, params, query, headers| show(seen, held, uri, params, query, headers))
    };
    let nested = Router::new().route("/{*id}", handler());
    let routes = Router::new()
        .route("/orders/{id}", handler())
        .route("/files/{*id}", handler())
        .nest("/nested", nested);
    let router = match by {
        // No parameter is due on these.
        By::Path | By::Header | By::Query | By::Function => routes
            .route("/", handler())
            .route("/other/{x}/y", handler())
            .fallback(handler()),
        _ => routes.fallback(unlocked),
    };
    locked(router, by, locks)
}

/// A gRPC client receives 200 and a `grpc-status`.
fn is_grpc(head: &Head) -> bool {
    head.headers
        .get_all("content-type")
        .iter()
        .any(|value| value == "application/grpc")
}

/// The routers of all kinds of layers.
pub(crate) struct Apps {
    locks: LockManager,
    seen: Seen,
    apps: [Router; ALL.len()],
}

impl Apps {
    pub(crate) fn new() -> Self {
        let locks = LockManager::in_memory();
        let seen = Seen::default();
        let apps = ALL.map(|by| app(by, &locks, &seen));
        Self { locks, seen, apps }
    }

    fn last_seen(&self) -> Option<Sight> {
        self.seen.lock().unwrap().take()
    }

    /// Sends a request through the layer `ALL[at]`. Returns `true` if its handler ran.
    ///
    /// Panics if the response is a 5xx, if the handler ran without the lock that its values name, or if a copy of the
    /// request runs while that lock is held.
    pub(crate) async fn check(&self, at: usize, head: &Head) -> bool {
        let (by, app) = (ALL[at], &self.apps[at]);
        let status = app.clone().oneshot(head.request()).await.unwrap().status();
        let context = format!("{by:?}, {head:?}: {status}");
        assert!(!status.is_server_error(), "{context}");
        let Some(sight) = self.last_seen() else {
            return false;
        };
        let held = sight.held.as_ref();
        let key = held
            .unwrap_or_else(|| panic!("unlocked: {context}"))
            .key()
            .clone();
        assert_eq!(key, LockKey::from_parts(sight.due(by)), "{context}");
        let guard = self.locks.acquire(key).await.unwrap();
        let copy = app.clone().oneshot(head.request()).await.unwrap();
        drop(guard);
        assert!(
            self.last_seen().is_none(),
            "runs beside the holder: {context}"
        );
        assert!(
            copy.status().is_client_error() || is_grpc(head),
            "{context}"
        );
        true
    }
}
