//! A tower [`Layer`](LockLayer) and an axum extractor ([`Locked`]) that take a reentrant,
//! watchdog-renewed, fenced lock for each HTTP request, in memory or on Redis.
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
//!     // A layer: requests to the same path, one at a time.
//!     let by_path = LockLayer::by_path(locks.clone()).wait(Duration::from_secs(2));
//!     // A scope: what `Locked` locks stays locked until the response is complete.
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
//! // An extractor: requests for the same accounts, whatever their path.
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
//! // The same locks outside of HTTP: meanwhile a transfer from or to bob waits.
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
//! As long as the backend keeps its data, evicts nothing and its clock does not jump:
//!
//! - *Mutual exclusion.* Of all who ask for a key, in all processes on the same backend, one owner
//!   holds it at a time. A request is an owner: what it holds it may take again, in nested layers and
//!   extractors, and in an [`acquire`](LockManager::acquire) that names its
//!   [`owner`](Acquire::owner).
//! - *Expiry.* A lock is renewed for as long as it is held; a layer gives it up after
//!   [`max_hold`](LockLayer::max_hold), 5 minutes unless set. When its process dies it is free after
//!   the [watchdog timeout](LockManagerBuilder::watchdog_timeout), 30 s unless set.
//! - *Order.* Within a process, waiters acquire a key in the order of their arrival. Between processes, those
//!   that wait for a key have their turns in the order of their arrival. A turn begins no further hold after
//!   50 ms. A [`Quorum`] has no order between processes. [`guide::order`] lists the conditions.
//! - *Liveness.* A process with waiters attempts at least every 1.1 s, even if every notification is lost. A free
//!   key thus reaches the first live process of the queue within that time.
//! - *Failed waiters.* A process that ends while it waits delays the others by at most 1.5 s once. All processes
//!   that hang while they wait delay the others by at most 4.5 s together.
//! - *Time.* Nobody waits longer than their wait, also when the backend is down. Queues are
//!   bounded.
//!
//! And whatever the backend does:
//!
//! - *Loss is told.* A guard knows by its own monotonic clock, counted from before the command was
//!   sent, until when it can be trusted. [`is_held`](Held::is_held) is false, and
//!   [`lost`](Held::lost) resolves, before the backend can let anybody else in by the end of the
//!   lease. The layer then drops the handler and answers 500.
//! - *Fencing.* The [`FencingToken`] grows with every fresh grant of a key, so a storage that
//!   remembers the largest one it saw can refuse the write of a holder that was overtaken. It keeps
//!   growing over an empty restart and a failover, as long as the servers' clocks agree.
//! - *Never unlocked by accident.* A backend that is down means 503, a key that cannot be read 400.
//!
//! It does *not*:
//!
//! - make a crash, a failover or an eviction that loses a lease unhappen: then two may hold one key
//!   until the first one is told, and only the fencing token, checked *by the storage*, keeps their
//!   writes apart;
//! - stop a handler that does not await: it is dropped at its next await at the earliest;
//! - replace a transaction: a handler that is dropped half-way leaves its work half done.
//!
//! # How it works
//!
//! Per key and process there is one lane with a queue. Only the head of a lane talks to the
//! backend, so a thousand requests for one busy key cost one subscription and one command in
//! flight. A lock that is given up while others of this process wait goes to the next of them
//! without a round trip. Several processes wait in a queue in the backend. A release transfers the lock to the
//! first of them in one command, and notifies only that one. Renewals are the work of one task per manager and runtime, in batches, and a
//! lock that is held for less than a third of its lease is not renewed. A release is off the request's
//! path: the response does not wait for it.
//!
//! The lock is given back when the response is complete. A body that is in memory is complete with
//! its head; one that streams takes the lock along until it ends, fails or is dropped.
//!
//! # What an HTTP client sees
//!
//! | situation | status | `Retry-After` | problem type |
//! |---|---|---|---|
//! | somebody else held the lock for the whole wait | 409, or [as set](LockLayer::status) | yes | `resource-busy` |
//! | too many wait for this key | 429 | yes | `too-many-waiters` |
//! | too many wait in this manager | 503 | yes | `lock-overload` |
//! | the backend cannot be used | 503 | yes, unless it refuses us for good | `lock-unavailable` |
//! | the manager shuts down | 503 | yes | `shutting-down` |
//! | the lock was lost before the head was sent | 500 | no | `lock-lost` |
//! | the lock was lost while the body streamed | the body ends with an error | | |
//! | the request does not say what to lock | 400 | no | `lock-key-invalid` |
//! | the key holds something that is no lock | 500 | no | `lock-key-conflict` |
//! | one request took one lock too many times | 500 | no | `lock-reentrancy` |
//!
//! The answer is `application/problem+json` (RFC 9457), plain text for who accepts only that, and a
//! status in the trailers for gRPC. It never names the key. [`LockLayer::on_reject`] replaces it;
//! [`LockRejection`] in its extensions says why.
//!
//! # Backends
//!
//! - [`Memory`]: in this process. The default, and enough for one process.
//! - [`RedisBackend`]: one Redis server, a service that Sentinel looks after, or a Cluster, for any
//!   number of processes. Wire-compatible with Redisson's `getLock`: services in Java and in Rust
//!   exclude and wake each other.
//! - [`Quorum`]: several stores that know nothing of each other, of which any minority may be lost, at
//!   the cost of a command to each.
//! - Your own [`Backend`]: the feature `conformance` has its contract as test functions.
//!
//! The [`guide`] tells of each place what it guarantees, what a failover can do, what to set.
//!
//! # Cancel safety
//!
//! Every future of this crate may be dropped at any await: an acquire leaves the queue at once, and
//! what a command under way may still acquire is given back in the background. A dropped guard
//! releases. Each async function says what dropping it does.
//!
//! # Features
//!
//! | feature | default | what for |
//! |---|---|---|
//! | `axum` | yes | [`Locked`], the extractors for [`Held`], [`Owner`] and [`LockScope`], [`LockLayer::by_path_param`] |
//! | `redis` | yes | [`RedisBackend`]: one server, Sentinel, Cluster |
//! | `redis-tls` | | `rediss://`, through rustls |
//! | `tracing` | | `warn` for a lost lock, a server that cannot be reached or looks unsafe; `debug` for an acquire that failed |
//! | `metrics` | | the counters `tower_lock_acquires_total{outcome}` and `tower_lock_lost_total`, the histogram `tower_lock_wait_seconds`; of the queue across processes, the counters `tower_lock_transfers_total` and `tower_lock_passed_over_total` (waiters of processes that ended or hang), and the histogram `tower_lock_transfer_seconds` (from a transfer to its confirmation) |
//! | `conformance` | | the backend contract as test functions, in [`backend::conformance`] |
//!
//! Without default features there is neither axum nor Redis in the tree.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod connect;
mod error;
#[cfg(feature = "axum")]
mod extract;
pub mod guide;
mod jitter;
mod key;
mod layer;
mod lock;
mod observe;
mod owner;
mod task;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod test_util;

#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use backend::redis::RedisBackend;
pub use backend::{Backend, Memory, Quorum};
pub use error::{ConfigError, ConnectError, Error, ErrorKind};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use extract::{HeldRejection, LockScopeRejection, Locked, LockedRejection, OwnerRejection};
pub use key::{InvalidKey, LockKey, LockKeys};
pub use layer::{
    ByExtension, ByHeader, ByPath, ByQuery, KeyExtractor, LockBody, LockLayer, LockRejection,
    LockScope, LockScopeLayer, LockScopeService, LockService, LockTarget, OnLost, OnUnavailable,
    ResponseFuture, Unlocked,
};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use layer::{ByPathParam, FromTarget, Guarded, LockBy};
pub use lock::{
    Acquire, AcquireFuture, Held, LockGuard, LockInfo, LockManager, LockManagerBuilder, Lost,
    MAX_HOLD_COUNT, Snapshot,
};
pub use owner::{FencingToken, Owner};

/// The examples of the README are compiled with the documentation tests.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
