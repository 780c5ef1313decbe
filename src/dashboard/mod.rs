//! A page that shows operators the locks of this process, as an axum router.
//!
//! The page lists the keys that are held and waited for, the hottest keys, waits and holds as plots, losses, and the
//! state of the backend. It looks up any key in the backend. Each page shows one process, and says which.
//!
//! # Protection
//!
//! The router responds to every request with 403 until a middleware of yours has inserted an [`Operator`] into the
//! extensions of the request. Keys can contain personal data, so the dashboard is for operators only:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::extract::Request;
//! use axum::middleware::{self, Next};
//! use axum::response::{IntoResponse, Response};
//! use axum::{Router, http::StatusCode};
//! use tower_lock::LockManager;
//! use tower_lock::dashboard::{self, Operator};
//!
//! /// The proxy in front of this service authenticates operators, and names them in a header.
//! async fn require_operator(mut request: Request, next: Next) -> Response {
//!     let name = request.headers().get("x-forwarded-user");
//!     let Some(name) = name.and_then(|name| name.to_str().ok()).map(str::to_owned) else {
//!         return StatusCode::UNAUTHORIZED.into_response();
//!     };
//!     request.extensions_mut().insert(Operator::new(name));
//!     next.run(request).await
//! }
//!
//! let locks = LockManager::in_memory();
//! let board = dashboard::router(locks.clone()).layer(middleware::from_fn(require_operator));
//! let app: Router = Router::new().nest("/ops/locks", board);
//! # use axum::{body::Body, http::Request as Req};
//! # use tower::ServiceExt as _;
//! # let get = || Req::get("/ops/locks");
//! # let response = app.clone().oneshot(get().body(Body::empty())?).await?;
//! # assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
//! # let response = app.oneshot(get().header("x-forwarded-user", "ada").body(Body::empty())?).await?;
//! # assert_eq!(response.status(), StatusCode::OK);
//! # Ok(())
//! # }
//! ```
//!
//! The page opens a stream with `EventSource`, which sends cookies, Basic credentials and client certificates, but no
//! bearer token. [`guide::dashboard`](crate::guide::dashboard) has complete examples of protection.
//!
//! # What it costs
//!
//! Without an open page, the dashboard reads a few counters per second, and walks through the lanes every 5 s for the
//! history. With one, it walks once per second for all open pages together, and once more at most if others open. A list
//! of keys in another order, or a summary, also needs a walk: at most 10 of them per second are admitted. All of its data
//! is bounded, to less than 1 MiB.

mod api;
mod board;
mod force_release;
mod headers;
mod limit;
mod operator;
mod page;
mod protect;
mod readings;
mod router;

pub use force_release::{ForceRelease, Veto};
pub use operator::Operator;
pub use router::{Dashboard, router};
