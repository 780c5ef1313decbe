//! The settings of the dashboard, and its routes.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::Html;
use axum::routing::{get, post};
use http::HeaderValue;
use uuid::Uuid;

use super::api;
use super::board::{Board, Peer};
use super::force_release::{Audit, ForceRelease, Veto};
use super::limit::Limit;
use super::page::PAGE;
use super::protect::protect;
use super::readings::Publisher;
use crate::LockManager;

/// Creates the routes of a read-only dashboard. Shorthand for [`Dashboard::new`] and [`Dashboard::router`].
///
/// The routes are closed until a middleware inserts an [`Operator`](super::Operator): see the
/// [module](super#protection).
pub fn router<S>(locks: LockManager) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    Dashboard::new(locks).router()
}

/// The settings of a dashboard.
///
/// ```
/// # fn main() {
/// use axum::Router;
/// use tower_lock::LockManager;
/// use tower_lock::dashboard::Dashboard;
///
/// let locks = LockManager::in_memory();
/// // On a developer's machine, on the loopback interface only.
/// let board = Dashboard::new(locks).unprotected().router();
/// let app: Router = Router::new().nest("/ops/locks", board);
/// # }
/// ```
#[must_use = "a dashboard does nothing until its router is served"]
pub struct Dashboard {
    locks: LockManager,
    protected: bool,
    origin: Option<String>,
    peers: Vec<Peer>,
    audit: Option<Box<Audit>>,
}

impl Dashboard {
    /// Creates a dashboard that shows the locks of this manager, and changes none.
    pub fn new(locks: LockManager) -> Self {
        Self {
            locks,
            protected: true,
            origin: None,
            peers: Vec::new(),
            audit: None,
        }
    }

    /// Opens the dashboard to every client that reaches it, without an [`Operator`](super::Operator). For local use.
    ///
    /// Keys can contain personal data. Use it only where the network admits operators alone, such as on the loopback
    /// interface.
    pub fn unprotected(mut self) -> Self {
        self.protected = false;
        self
    }

    /// Sets the origin of the page, such as `https://ops.example.com`. Defaults to the `Host` of each request.
    ///
    /// Set it behind a proxy that changes `Host`. Requests that look up a key are otherwise rejected with 403.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Lets operators release a key by force. By default, the dashboard is read-only.
    ///
    /// The operator types the key, or check digits of a long one, and a reason. `audit` runs before the release and
    /// may reject it. The event `force release` of the target `tower_lock::audit` (feature `tracing`) follows, with
    /// the operator, the reason and the outcome. It does not contain the key, which `audit` receives. At most one
    /// release per second is admitted.
    ///
    /// Only the lock of the owner that the operator has seen is released:
    /// [`force_release_held_by`](LockManager::force_release_held_by). In another process, that is its lease, which it
    /// hands off among its requests.
    ///
    /// ```
    /// # fn main() {
    /// use tower_lock::LockManager;
    /// use tower_lock::dashboard::{Dashboard, Veto};
    ///
    /// let board = Dashboard::new(LockManager::in_memory()).allow_force_release(|release| {
    ///     let operator = release.operator.as_ref().ok_or_else(|| Veto::new("no operator"))?;
    ///     eprintln!("{} releases {}: {}", operator.name(), release.key.as_str(), release.reason);
    ///     Ok(())
    /// });
    /// # let _router: axum::Router = board.router();
    /// # }
    /// ```
    pub fn allow_force_release(
        mut self,
        audit: impl Fn(&ForceRelease) -> Result<(), Veto> + Send + Sync + 'static,
    ) -> Self {
        self.audit = Some(Box::new(audit));
        self
    }

    /// Adds a link to the dashboard of another process. Each page shows one process.
    ///
    /// `url` is absolute, with `http` or `https`, or a path. The page does not show another one.
    pub fn peer(mut self, name: impl Into<String>, url: impl Into<String>) -> Self {
        self.peers.push(Peer {
            name: name.into(),
            url: url.into(),
        });
        self
    }

    /// Creates the routes, to be nested under a path of their own.
    ///
    /// The history of the plots begins now if the caller is in a Tokio runtime, and with the first request otherwise.
    pub fn router<S>(self) -> Router<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        let instance = Uuid::new_v4().simple().to_string()[..8].to_owned();
        let board = Arc::new(Board {
            instance_header: HeaderValue::from_str(&instance)
                .unwrap_or_else(|_| unreachable!("BUG: hexadecimal digits are a header value")),
            publisher: Publisher::new(&self.locks, &instance),
            locks: self.locks,
            protected: self.protected,
            origin: self.origin,
            peers: self.peers,
            audit: self.audit,
            forces: Limit::per_second(1),
            instance,
            host: host_name(),
            started: SystemTime::now(),
            inspects: Limit::per_second(5),
            walks: Limit::per_second(10),
        });
        board.publisher.ensure_running();
        Router::new()
            .route("/", get(|| async { Html(PAGE) }))
            .route("/api/v1/summary", get(api::summary))
            .route("/api/v1/history", get(api::history))
            .route("/api/v1/incidents", get(api::incidents))
            .route("/api/v1/stream", get(api::stream))
            .route("/api/v1/holders", get(api::holders))
            .route("/api/v1/inspect", post(api::inspect))
            .route("/api/v1/force-release", post(api::force_release))
            .fallback(api::not_found)
            .layer(from_fn_with_state(Arc::clone(&board), protect))
            .with_state(board)
    }
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard")
            .field("protected", &self.protected)
            .field("origin", &self.origin)
            .field("peers", &self.peers)
            .field("allows_force_release", &self.audit.is_some())
            .finish_non_exhaustive()
    }
}

/// Returns the name of this machine, or of its container.
fn host_name() -> String {
    let from_env = || std::env::var("HOSTNAME").ok();
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(from_env).unwrap_or_default();
    name.trim().to_owned()
}
