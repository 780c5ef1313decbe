//! A tower [`Layer`](LockLayer) and an axum extractor ([`Locked`]) that acquire a reentrant,
//! watchdog-renewed, fenced lock for each HTTP request, in memory, in Redis or in PostgreSQL.
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use axum::routing::{post, put};
//! use axum::{Json, Router};
//! use serde::Deserialize;
//! use tower_lock::{
//!     Held, LockKey, LockKeys, LockLayer, LockManager, LockScopeLayer, LockTarget, Locked,
//! };
//!
//! fn app(locks: LockManager) -> Router {
//!     // A layer: writes to the same path, one at a time. Reads pass.
//!     let by_path = LockLayer::by_path(locks.clone()).wait(Duration::from_secs(2));
//!     // A scope: locks of `Locked` are held until the response is complete.
//!     let scope = LockScopeLayer::new().wait(Duration::from_secs(2));
//!     Router::new()
//!         .route("/orders/{id}", put(update).route_layer(by_path))
//!         .route("/transfers", post(transfer).route_layer(scope))
//!         .with_state(locks)
//! }
//!
//! async fn update(held: Held) -> String {
//!     // Send the token along with the write: the storage can then reject a stale holder.
//!     format!("written with token {}", held.fencing_token())
//! }
//!
//! // An extractor: requests for the same accounts, on any path.
//! async fn transfer(Locked(Json(transfer), guard): Locked<Json<Transfer>>) -> String {
//!     format!("from {} with token {}", transfer.from, guard.fencing_token())
//! }
//!
//! #[derive(Deserialize)]
//! struct Transfer {
//!     from: String,
//!     to: String,
//! }
//!
//! impl LockTarget for Transfer {
//!     fn lock_keys(&self) -> LockKeys {
//!         // Both or none. One lock if `from == to`, which the handler must check.
//!         LockKeys::from([
//!             LockKey::from_parts(["account", &self.from]),
//!             LockKey::from_parts(["account", &self.to]),
//!         ])
//!     }
//! }
//!
//! let locks = LockManager::in_memory();
//! let app = app(locks.clone());
//! # use axum::{body::Body, http::{Request, StatusCode}};
//! # use tower::ServiceExt;
//! # let put = || Request::put("/orders/42").body(Body::empty());
//! # let post = || Request::post("/transfers").header("content-type", "application/json")
//! #     .body(Body::from(r#"{"from": "alice", "to": "bob"}"#));
//! # assert_eq!(app.clone().oneshot(put()?).await?.status(), StatusCode::OK);
//! # assert_eq!(app.clone().oneshot(post()?).await?.status(), StatusCode::OK);
//!
//! // The same locks outside of HTTP. While this guard is held, a transfer from or to bob waits.
//! let guard = locks.acquire(LockKey::from_parts(["account", "bob"])).await?;
//! # let waiting = tokio::spawn(app.clone().oneshot(post()?));
//! # tokio::time::sleep(Duration::from_millis(50)).await;
//! # assert!(!waiting.is_finished());
//! drop(guard);
//! # assert_eq!(waiting.await??.status(), StatusCode::OK);
//! # Ok(())
//! # }
//! ```
//!
//! # What it guarantees, and what it does not
//!
//! While the backend retains its data, evicts nothing and its clock does not step:
//!
//! - *Mutual exclusion.* At most one owner holds a key at a time, in all processes on the same backend. A request is
//!   an owner. It re-enters the locks that it holds in nested layers and extractors, and in an
//!   [`acquire`](LockManager::acquire) that names its [`owner`](Acquire::owner). [Shared](Acquire::shared) locks exclude
//!   only exclusive locks. A permit of [`permits(n)`](Acquire::permits) is granted while fewer than `n` are held.
//! - *Renewal.* A lock is renewed while it is held. A layer releases it after [`max_hold`](LockLayer::max_hold), 5 min
//!   by default. A lock with a fixed [`lease`](Acquire::lease) is not renewed.
//! - *Expiry.* If the process of a holder ends, the lock is free after the
//!   [watchdog timeout](LockManagerBuilder::watchdog_timeout), 30 s by default, or after its fixed lease.
//! - *Order.* Within a process, waiters acquire a key in the order of their arrival. Between processes, those
//!   that wait for a key have their turns in the order of their arrival. A turn begins no further hold after
//!   50 ms. A [`Quorum`] has no order between processes. [`guide::order`] lists the conditions.
//! - *Liveness.* A process with waiters attempts at least every 1.1 s, even if every notification is lost. A free
//!   key thus reaches the first live process of the queue within that time.
//! - *Failed waiters.* A process that ends while it waits delays the others by at most 1.5 s once. All processes
//!   that hang while they wait delay the others by at most 4.5 s together.
//!
//! While the backend keeps its fencing counter, or its clock is past the tokens that it lost:
//!
//! - *Fencing.* Each fresh grant of a key has a larger [`FencingToken`] than the grants before, also over an empty
//!   restart and a failover. A storage that remembers the largest token can reject the writes of a stale holder.
//!   [`guide::fencing`] shows the statements.
//!
//! Without conditions:
//!
//! - *Time.* An acquire ends within its wait, even while the backend is unavailable. A single attempt,
//!   [`no_wait`](Acquire::no_wait), ends within one response timeout (500 ms by default). Queues are bounded.
//! - *Loss.* A guard has a deadline by the clock of its process, counted from before the command was sent. From then
//!   on, [`is_held`](Held::is_held) returns `false` and [`lost`](Held::lost) has completed. The layer or scope drops
//!   the handler and responds with 500. While the backend's clock does not step, the lease expires later than that.
//! - *Rejection.* By default, a request never runs without its lock. If the backend is unavailable, the response is
//!   503. If the request has no usable key, it is 400.
//!
//! It does *not*:
//!
//! - prevent two holders after a crash, a failover or an eviction that loses a lease. Until the loss of the first is
//!   reported, two owners can hold the key. Let the storage check the [fencing token](guide::fencing);
//! - stop a handler that does not await. It is dropped at its next await at the earliest;
//! - replace a transaction. A handler that is dropped leaves its work half done.
//!
//! # How it works
//!
//! Each key has one lane with a queue in each process. Only the head of a lane calls the backend, so a thousand
//! requests for one busy key cost one subscription and one command in flight. A lock that is released while others
//! of this process wait is handed off to the next of them without a round trip. Several processes wait in a queue in
//! the backend. A release transfers the lock to the first of them in one command, and notifies only that one.
//!
//! One task per manager renews leases, in batches. Normally, a lock that is held for less than a third of
//! its lease is not renewed; a reconnect renews all leases. A release is off the request's path: the response does
//! not wait for it.
//!
//! The lock is released when the response is complete. A body in memory is complete with its head. A streaming body
//! holds the lock until it ends, fails or is dropped.
//!
//! # What an HTTP client sees
//!
//! | situation | status | `Retry-After` | problem type |
//! |---|---|---|---|
//! | another owner held the lock for the whole wait | 409, or [as set](LockLayer::status) | yes | `resource-busy` |
//! | no [permit](LockLayer::permits) was free for the whole wait | 429, or [as set](LockLayer::status) | yes | `permits-exhausted` |
//! | too many waiters for this key | 429 | yes | `too-many-waiters` |
//! | too many waiters in this manager | 503 | yes | `lock-overload` |
//! | the backend is unavailable | 503 | yes, unless it rejects this service | `lock-unavailable` |
//! | the manager is shutting down: the request is new, or waited to the end of the grace | 503 | yes | `shutting-down` |
//! | the lock was lost before the head was sent | 500 | no | `lock-lost` |
//! | the lock was lost while the body streamed | the body ends with an error | | |
//! | the request has no usable key | 400 | no | `lock-key-invalid` |
//! | no route matches, under a layer that locks by a path parameter; a safe method runs the fallback instead | 404 | no | `no-route` |
//! | the program is wrong: no request to the route has a key, or [`Locked`] has no scope | 500 | no | `lock-misconfigured` |
//! | the body is too large, late or incomplete, under [`LockLayer::read_body_first`] or while the request waits | 413, 408 or 400 | no | `about:blank` |
//! | the key in the backend holds other data, or the owner holds it in another mode | 500 | no | `lock-key-conflict` |
//! | one owner acquired one lock more than 64 times | 500 | no | `lock-reentrancy` |
//! | an owner holds the lock shared, or a permit, and acquires it exclusively | 500 | no | `lock-upgrade` |
//! | the program set an option out of bounds, or the backend does not support the mode | 500 | no | `lock-option-invalid` |
//! | the handler returned an [`Error`] | that of its kind | no | `lock-failed-in-handler` |
//!
//! The response is `application/problem+json` (RFC 9457), plain text for clients that accept only text, and a
//! status in the trailers for gRPC. It never contains the key. [`LockLayer::on_reject`] replaces it, and
//! [`LockRejection`] in its extensions has the reason. [`guide::http`] has the settings and advice for clients.
//!
//! # Backends
//!
//! - [`Memory`]: in this process. The default, and enough for one process.
//! - [`RedisBackend`]: one Redis server, Sentinel or a Cluster, for any number of processes. It is wire-compatible
//!   with Redisson's `getLock`, so services in Java and in Rust exclude and notify each other.
//! - `PostgresBackend`: a PostgreSQL that the service has already, with a fence that no commit passes:
//!   [`guide::postgres`].
//! - [`Quorum`]: several independent nodes, of which any minority may be lost, at the cost of a command to each.
//! - A [`Backend`](backend::Backend) of your own: [`guide::backend`]. The feature `conformance` has its contract as test functions.
//!
//! The [`guide`] states for each place what it guarantees, what a failover can do to it, and what to set.
//!
//! # Cancel safety
//!
//! Every future of this crate may be dropped at any await. A dropped acquire leaves the queue at once, and a lock
//! that a command in flight may still acquire is released in the background. A dropped guard releases its lock. Each
//! async function documents what happens if it is dropped.
//!
//! # Features
//!
//! | feature | default | enables |
//! |---|---|---|
//! | `axum` | yes | [`Locked`], the extractors for [`Held`], [`Owner`] and [`LockScope`], [`LockLayer::by_path_param`] |
//! | `redis` | yes | [`RedisBackend`]: one server, Sentinel, Cluster |
//! | `redis-tls` | no | `rediss://`, through rustls |
//! | `postgres` | no | `PostgresBackend`, and a fence for transactions: [`guide::postgres`] |
//! | `postgres-tls` | no | `sslmode=require` in its URL, through rustls |
//! | `tracing` | no | events of grants, losses, outages and failed acquires, spans of waits: [`guide::operations`] |
//! | `metrics` | no | counters, gauges and histograms of locks and the backend: [`guide::operations`] |
//! | `dashboard` | no | a page that shows operators the locks, as an axum router: [`guide::dashboard`] |
//! | `conformance` | no | the backend contract as test functions, in [`backend::conformance`] |
//! | `test-util` | no | [`Held`] and [`Error`] by hand, for tests of handlers: [`guide::testing`]; exempt from semantic versioning |
//!
//! Without default features, the crate depends neither on axum nor on Redis.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod connect;
#[cfg(feature = "dashboard")]
#[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
pub mod dashboard;
mod error;
#[cfg(feature = "axum")]
mod extract;
pub mod guide;
mod jitter;
mod key;
mod layer;
mod lock;
mod mode;
mod mutex;
mod observe;
mod owner;
mod task;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod test_util;

use error::ConfigError;
use key::InvalidKey;
use lock::{Acquire, AcquireFuture, Lost};
use observe::LostReason;

pub use backend::memory::Memory;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use backend::postgres::backend::PostgresBackend;
pub use backend::quorum::Quorum;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use backend::redis::backend::RedisBackend;
pub use error::{ConnectError, Error, ErrorKind};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use extract::{Locked, LockedShared};
pub use key::{LockKey, LockKeys};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use layer::LockBy;
pub use layer::{
    LockLayer, LockRejection, LockScope, LockScopeLayer, LockTarget, OnLost, OnUnavailable,
};
pub use lock::{Held, LockGuard, LockManager, LockManagerBuilder};
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub use observe::metrics;
pub use owner::{FencingToken, Owner};

/// What [`LockManager`] and its guards return, and the futures of acquires.
pub mod manager {
    pub use crate::error::ConfigError;
    pub use crate::layer::ScopeAcquire;
    #[cfg(feature = "tracing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
    pub use crate::lock::TraceKeys;
    pub use crate::lock::{Acquire, AcquireFuture, LockInfo, Snapshot};
    pub use crate::observe::{LostReason, Via};
}

/// The sources of keys, which the constructors of [`LockLayer`] create, the traits for sources of a program, and why a key is
/// invalid.
pub mod keys {
    pub use crate::key::{InvalidKey, KeyPart, KeyParts};
    pub use crate::layer::{BodyFirst, ByFn, ByPath, ByValue, IntoLockKeys, KeyExtractor};
    #[cfg(feature = "axum")]
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    pub use crate::layer::{FromTarget, Guarded, Shared};
}

/// The services, futures and bodies that the layers create, and the mark of a request without its lock.
pub mod service {
    pub use crate::layer::{
        BodyFirstFuture, LockBody, LockScopeService, LockService, ReadBody, ResponseFuture,
        Unlocked,
    };
}

/// The rejections of the extractors.
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod rejection {
    pub use crate::extract::{LockedRejection, MissingLayer};
}

/// The examples of the README are compiled with the documentation tests.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
