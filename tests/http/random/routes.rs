//! A right program under each layer, and what its handlers see.

use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{OriginalUri, Query, RawPathParams, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use serde::Deserialize;
use tower_lock::backend::Mode;
use tower_lock::keys::{InvalidKey, KeyExtractor};
use tower_lock::{
    Held, LockKey, LockKeys, LockLayer, LockManager, LockScopeLayer, LockTarget, Locked,
};

/// The kinds of layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum By {
    Path,
    Param,
    ParamAs,
    Params,
    Header,
    Host,
    Query,
    /// By a value that a middleware reads from a header.
    Extension,
    Function,
    /// By the path, shared for reads.
    SharedReads,
    /// By a header, with several permits.
    Permits,
    /// With the body before the lock.
    PathAfterBody,
    HeaderAfterBody,
    /// By the body, in a scope.
    Json,
    /// By a header after the body, and by the body.
    HeaderAndJson,
}

pub(crate) const ALL: [By; 15] = [
    By::Path,
    By::Param,
    By::ParamAs,
    By::Params,
    By::Header,
    By::Host,
    By::Query,
    By::Extension,
    By::Function,
    By::SharedReads,
    By::Permits,
    By::PathAfterBody,
    By::HeaderAfterBody,
    By::Json,
    By::HeaderAndJson,
];

/// The bounds of a body that is read before the lock.
pub(crate) const LIMIT: usize = 60;
const DEADLINE: Duration = Duration::from_secs(1);

pub(crate) const PERMITS: u32 = 2;

impl By {
    pub(crate) fn reads_body_first(self) -> bool {
        matches!(
            self,
            Self::PathAfterBody | Self::HeaderAfterBody | Self::HeaderAndJson
        )
    }

    /// Whether a request without a lock is right.
    pub(crate) fn can_pass(self) -> bool {
        matches!(
            self,
            Self::Path | Self::HeaderAfterBody | Self::Function | Self::SharedReads
        )
    }

    /// The mode of the locks that are due.
    fn mode(self, method: &Method, asks_for_upgrade: bool) -> Mode {
        match self {
            Self::SharedReads if *method == Method::HEAD => Mode::Shared,
            Self::SharedReads if *method == Method::GET && !asks_for_upgrade => Mode::Shared,
            Self::Permits => Mode::Permit,
            _ => Mode::Exclusive,
        }
    }
}

/// What a handler sees of a request that runs.
pub(crate) struct Sight {
    /// The keys that the request holds, and those that it must hold.
    pub(crate) held: Vec<LockKey>,
    pub(crate) due: Vec<LockKey>,
    /// The mode in which the request holds them, and the one in which it must.
    pub(crate) held_mode: Option<Mode>,
    pub(crate) mode: Mode,
    /// The body, if the layer has read it.
    pub(crate) body: Option<Vec<u8>>,
}

pub(crate) type Seen = Arc<Mutex<Option<Sight>>>;

fn named(name: &str, value: &[u8]) -> LockKey {
    LockKey::from_parts([name.as_bytes(), value])
}

/// The value that axum decoded.
fn id(params: &Result<RawPathParams, RawPathParamsRejection>) -> &str {
    let params = params.as_ref().unwrap();
    params.iter().find(|(name, _)| *name == "id").unwrap().1
}

fn path_key(path: &str) -> LockKey {
    let path: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
    let segments = path.split(|&byte| byte == b'/');
    let segments: Vec<_> = segments.filter(|segment| !segment.is_empty()).collect();
    LockKey::from_parts([[b"/", &*segments.join(&b'/')].concat()])
}

/// The authority of the target, or the header, without what differs between spellings.
fn host_key(uri: &Uri, headers: &HeaderMap) -> LockKey {
    let in_header = || headers["host"].to_str().unwrap();
    let host = uri.authority().map_or_else(in_header, |it| it.as_str());
    let host = host.rsplit('@').next().unwrap().to_lowercase();
    // An address of IPv6 contains colons.
    let end = host.find(']').map_or(0, |end| end + 1);
    let (mut host, port) = match host[end..].split_once(':') {
        Some((rest, port)) => (host[..end].to_owned() + rest, port.parse().unwrap_or(80)),
        None => (host, 80),
    };
    if let Some(ip) = host.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
        host = format!("[{}]", ip.parse::<Ipv6Addr>().unwrap());
    }
    host = host.trim_end_matches('.').to_owned();
    if ![80_u16, 443].contains(&port) {
        host += &format!(":{port}");
    }
    named("host", host.as_bytes())
}

/// Whether the request asks for another protocol, as a WebSocket does.
fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let lines = headers.get_all("connection").iter();
    let texts = lines.map(|line| String::from_utf8_lossy(line.as_bytes()).to_lowercase());
    let mut options = texts.flat_map(|text| text.split(',').map(str::to_owned).collect::<Vec<_>>());
    options.any(|option| option.trim() == "upgrade")
}

fn is_read(method: &Method, headers: &HeaderMap) -> bool {
    match *method {
        Method::GET => !asks_for_upgrade(headers),
        _ => [Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method),
    }
}

fn only_id(query: &[(String, String)]) -> &str {
    let mut values = query.iter().filter(|(name, _)| name == "id");
    let value = values.next().unwrap();
    assert!(values.next().is_none());
    &value.1
}

#[expect(clippy::too_many_arguments, reason = "each is an extractor")]
async fn show(
    by: By,
    seen: Seen,
    held: Option<Held>,
    method: Method,
    OriginalUri(uri): OriginalUri,
    params: Result<RawPathParams, RawPathParamsRejection>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
    body: Body,
) -> StatusCode {
    let due = match by {
        By::Path | By::HeaderAfterBody if is_read(&method, &headers) => None,
        By::Function if method == Method::DELETE => None,
        By::SharedReads if [Method::OPTIONS, Method::TRACE].contains(&method) => None,
        By::Path | By::SharedReads | By::PathAfterBody => Some(path_key(uri.path())),
        By::Param | By::Params => Some(named("id", id(&params).as_bytes())),
        By::ParamAs => {
            let id: u64 = id(&params).parse().unwrap();
            Some(named("id", id.to_string().as_bytes()))
        }
        By::Host => Some(host_key(&uri, &headers)),
        By::Query => Some(named("id", only_id(&query).as_bytes())),
        By::Extension => Some(named("tenant", headers["x-id"].as_bytes())),
        _ => Some(named("x-id", headers["x-id"].as_bytes())),
    };
    let body = match by.reads_body_first() && due.is_some() {
        true => Some(to_bytes(body, LIMIT).await.expect("it is complete").into()),
        false => None,
    };
    *seen.lock().unwrap() = Some(Sight {
        held: held.iter().flat_map(Held::keys).cloned().collect(),
        due: due.into_iter().collect(),
        held_mode: held.as_ref().map(Held::mode),
        mode: by.mode(&method, asks_for_upgrade(&headers)),
        body,
    });
    StatusCode::NO_CONTENT
}

/// A body that names one key or two.
#[derive(Deserialize)]
struct Transfer {
    from: String,
    to: Option<String>,
}

impl LockTarget for Transfer {
    fn lock_keys(&self) -> LockKeys {
        [Some(&self.from), self.to.as_ref()]
            .into_iter()
            .flatten()
            .map(|account| named("account", account.as_bytes()))
            .collect()
    }
}

async fn transfer(
    by: By,
    seen: Seen,
    held: Option<Held>,
    headers: HeaderMap,
    Locked(Json(transfer), guard): Locked<Json<Transfer>>,
) -> StatusCode {
    let mut due = transfer.lock_keys().as_slice().to_vec();
    if by == By::HeaderAndJson {
        due.push(named("x-id", headers["x-id"].as_bytes()));
    }
    let guard = guard.held();
    let held = held.iter().flat_map(Held::keys).chain(guard.keys());
    *seen.lock().unwrap() = Some(Sight {
        held: held.cloned().collect(),
        due,
        held_mode: Some(guard.mode()),
        mode: Mode::Exclusive,
        body: None,
    });
    StatusCode::NO_CONTENT
}

async fn unlocked() -> StatusCode {
    panic!("the fallback runs unlocked")
}

#[derive(Clone)]
struct Tenant(HeaderValue);

impl LockTarget for Tenant {
    fn lock_keys(&self) -> LockKeys {
        named("tenant", self.0.as_bytes()).into()
    }
}

/// Inserts the tenant, as a middleware that authenticates does.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let Some(id) = request.headers().get("x-id").cloned() else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(Tenant(id));
    next.run(request).await
}

fn by_function(locks: LockManager) -> LockLayer<impl KeyExtractor> {
    LockLayer::by_fn(locks, |request| {
        if request.method == Method::DELETE {
            return Ok(None);
        }
        let missing = || InvalidKey::Missing("header `x-id`".into());
        let id = request.headers.get("x-id").ok_or_else(missing)?;
        Ok(Some(named("x-id", id.as_bytes())))
    })
}

fn locked(router: Router, by: By, locks: &LockManager) -> Router {
    let locks = locks.clone();
    fn all<K>(layer: LockLayer<K>) -> LockLayer<K> {
        layer.all_methods().no_wait()
    }
    let by_header = |locks| LockLayer::by_header(locks, "x-id").no_wait();
    match by {
        By::Path => router.layer(LockLayer::by_path(locks).no_wait()),
        By::Param => router.layer(all(LockLayer::by_path_param(locks, "id"))),
        By::ParamAs => router.layer(all(LockLayer::by_path_param_as::<u64>(locks, "id"))),
        By::Params => router.layer(all(LockLayer::by_path_params(locks, ["id"]))),
        By::Header => router.layer(all(by_header(locks))),
        By::Host => router.layer(all(LockLayer::by_host(locks))),
        By::Query => router.layer(all(LockLayer::by_query(locks, "id"))),
        By::Extension => {
            let layer = all(LockLayer::by_extension::<Tenant>(locks));
            router.layer(layer).layer(from_fn(authenticate))
        }
        By::Function => router.layer(all(by_function(locks))),
        By::SharedReads => router.layer(LockLayer::by_path(locks).no_wait().shared_reads()),
        By::Permits => router.layer(by_header(locks).permits(PERMITS)),
        By::PathAfterBody => {
            let layer = all(LockLayer::by_path(locks));
            router.layer(layer.read_body_first(LIMIT, DEADLINE))
        }
        By::HeaderAfterBody => router.layer(by_header(locks).read_body_first(LIMIT, DEADLINE)),
        By::Json => router.layer(LockScopeLayer::new().no_wait()),
        By::HeaderAndJson => router.layer(all(by_header(locks)).read_body_first(LIMIT, DEADLINE)),
    }
}

pub(crate) fn app(by: By, locks: &LockManager, seen: &Seen) -> Router {
    let handler = || {
        let seen = seen.clone();
        match by {
            By::Json | By::HeaderAndJson => {
                any(move |held, headers, locked| transfer(by, seen, held, headers, locked))
            }
            _ => any(move |held, method, uri, params, query, headers, body| {
                show(by, seen, held, method, uri, params, query, headers, body)
            }),
        }
    };
    let nested = Router::new().route("/{*id}", handler());
    let routes = Router::new()
        .route("/orders/{id}", handler())
        .route("/files/{*id}", handler())
        .nest("/nested", nested);
    let router = match by {
        By::Param | By::ParamAs | By::Params => routes.fallback(unlocked),
        // No parameter is due on these.
        _ => routes
            .route("/", handler())
            .route("/other/{x}/y", handler())
            .fallback(handler()),
    };
    locked(router.with_state(locks.clone()), by, locks)
}
