//! Keys: for developers choosing which requests exclude each other.
//!
//! # Where keys come from
//!
//! | source | constructor | key |
//! |---|---|---|
//! | the path | [`by_path`](crate::LockLayer::by_path) | [`LockKey::from_path`](crate::LockKey::from_path) |
//! | a parameter of the axum route | [`by_path_param`](crate::LockLayer::by_path_param)`(locks, "account")` | `["account", value]` |
//! | a parsed parameter | [`by_path_param_as`](crate::LockLayer::by_path_param_as)`::<u64>(locks, "account")` | `["account", value]`, as `Display` writes the value |
//! | several parameters | [`by_path_params`](crate::LockLayer::by_path_params)`(locks, ["shop", "order"])` | `["shop", value, "order", value]` |
//! | a header | [`by_header`](crate::LockLayer::by_header)`(locks, "x-tenant")` | `["x-tenant", value]` |
//! | the host, over HTTP/1.1 and HTTP/2 | [`by_host`](crate::LockLayer::by_host)`(locks)` | `["host", value]` |
//! | the query | [`by_query`](crate::LockLayer::by_query)`(locks, "account")` | `["account", value]` |
//! | a value from an outer layer | [`by_extension`](crate::LockLayer::by_extension)`::<Tenant>(locks)` | its [`LockTarget`](crate::LockTarget) |
//! | anything else in the head | [`by_fn`](crate::LockLayer::by_fn)`(locks, closure)` | the closure's |
//! | the body, or another extractor | [`Locked<T>`](crate::Locked) in the handler, under a [`LockScopeLayer`](crate::LockScopeLayer) | its [`LockTarget`](crate::LockTarget) or [`LockBy`](crate::LockBy) |
//! | a look-up in the handler | [`LockScope::acquire`](crate::LockScope::acquire)`(&locks, key)` | a [`LockKey`](crate::LockKey) |
//! | a job without a request | [`acquire`](crate::LockManager::acquire)`(key)` | a [`LockKey`](crate::LockKey) |
//!
//! The name of a parameter is a part of the key. An order and a customer share locks if both routes have the parameter
//! `{id}`. Set [`kind`](crate::LockLayer::kind) on one of the layers, or rename the parameter: `/orders/{order}`. A handler
//! with `Path<u64>` needs no change. A struct in `Path` needs a field of the new name. With the feature `tracing`, a layer
//! warns about such routes.
//!
//! The path and its parameter are two keys: a layer `by_path` and a layer `by_path_param` on `/orders/{order}` do not
//! exclude each other.
//!
//! A route, an extractor and a job with the same parts share a lock:
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Json, Router, body::Body, http::{Request, StatusCode}, routing::post};
//! use serde::Deserialize;
//! use tower::ServiceExt;
//! use tower_lock::{LockKey, LockKeys, LockLayer, LockManager, LockScopeLayer, LockTarget, Locked};
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
//! async fn transfer(Locked(Json(transfer), _guard): Locked<Json<Transfer>>) -> String {
//!     format!("{} to {}", transfer.from, transfer.to)
//! }
//!
//! let locks = LockManager::builder(tower_lock::Memory::new()).wait(std::time::Duration::ZERO).build()?;
//! let close = LockLayer::by_path_param(locks.clone(), "account");
//! let app: Router = Router::new()
//!     .route("/accounts/{account}/close", post(async || "closed").route_layer(close))
//!     .route("/transfers", post(transfer).route_layer(LockScopeLayer::new()))
//!     .with_state(locks.clone());
//!
//! // A job holds the lock of one account. Both routes are busy.
//! let job = locks.acquire(LockKey::from_parts(["account", "alice"])).await?;
//! let close = Request::post("/accounts/alice/close").body(Body::empty())?;
//! assert_eq!(app.clone().oneshot(close).await?.status(), StatusCode::CONFLICT);
//! let transfer = Request::post("/transfers")
//!     .header("content-type", "application/json")
//!     .body(Body::from(r#"{"from": "bob", "to": "alice"}"#))?;
//! assert_eq!(app.oneshot(transfer).await?.status(), StatusCode::CONFLICT);
//! # drop(job);
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! - **Lock what the handler writes**, not what the client asked for. All routes that change an account must make the
//!   same key.
//! - **Build keys with [`from_parts`](crate::LockKey::from_parts)** if a piece comes from a request. It keeps
//!   `["a:b", "c"]` and `["a", "b:c"]` apart. An empty part is rejected with 400, so a missing id never becomes one
//!   lock for all requests.
//! - **One spelling per record.** `7` and `07` are one number and two keys. Lock by the text that identifies the
//!   record, or by the parsed value everywhere: `by_path_param_as` parses it. `by_path` decodes the path, so `a%40b` and
//!   `a@b` are one key, and so are `/orders/7`, `//orders/7` and `/orders/7/`: middleware that rewrites paths can serve
//!   them by one handler.
//! - **A request has several forms.** HTTP/2 has no header `host`, and HTTP/1.1 mostly no host in the target. A closure
//!   that reads one of them and returns `None` without it passes the requests of the other version unlocked. Return an
//!   [`InvalidKey`](crate::keys::InvalidKey) where a value is missing, and lock by the host with `by_host`.
//! - **All keys in one acquire.** A handler that needs two locks acquires them in one [`LockKeys`](crate::LockKeys):
//!   all or none, in one order, and [a duplicate only once](#when-two-keys-are-one). If it acquires them one after the
//!   other, two requests can wait for each other until their waits end.
//! - **Authentication and [validation](#validate-a-body-before-the-lock) go outside of the lock.** A client without
//!   permission then cannot block other clients. Timeouts go outside as well, and are longer than the wait: a busy
//!   resource is then 409 and not 408.
//! - **To acquire a held lock again, name its owner.** Nested layers, extractors and
//!   [`LockScope::acquire`](crate::LockScope::acquire) do so automatically. Any other
//!   [`acquire`](crate::LockManager::acquire) in a handler needs `.owner(held.owner())`. Without it, the acquire waits
//!   for its own request, and is rejected at the end of its wait.
//! - **One manager per process and backend.** An owner belongs to one manager. A request that holds a key through one
//!   manager and acquires it through another one over the same backend waits for itself as well. Clone the manager.
//! - **A layer locks before the body arrives.** A client that sends its body slowly holds the lock. For clients that
//!   are not trusted, set [`read_body_first`](crate::LockLayer::read_body_first), or use `Locked<Json<..>>`, which
//!   locks after the body.
//! - **In doubt, lock too much.** A key that covers too much costs time. A key that covers too little loses updates.
//!
//! # When two keys are one
//!
//! A transfer from an account to itself names one key twice. An acquire removes duplicates: the guard holds one lock, and
//! the request neither waits for itself nor is rejected. The lock does not correct the handler. One that reads both
//! balances and then writes both overwrites the first write with the second, and creates money. Compare the two before
//! the first write:
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Json, Router, body::Body, http::{Request, StatusCode}, routing::post};
//! use serde::Deserialize;
//! use tower::ServiceExt;
//! use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
//!
//! #[derive(Deserialize)]
//! struct Transfer {
//!     from: String,
//!     to: String,
//! }
//!
//! impl LockTarget for Transfer {
//!     fn lock_keys(&self) -> LockKeys {
//!         // Two keys, or one if `from == to`.
//!         [&self.from, &self.to].map(|id| LockKey::from_parts(["account", id])).into()
//!     }
//! }
//!
//! async fn transfer(Locked(Json(transfer), guard): Locked<Json<Transfer>>) -> StatusCode {
//!     if transfer.from == transfer.to {
//!         return StatusCode::UNPROCESSABLE_ENTITY;
//!     }
//!     assert_eq!(guard.keys().len(), 2);
//!     StatusCode::OK
//! }
//!
//! let app: Router = Router::new()
//!     .route("/transfers", post(transfer))
//!     .layer(LockScopeLayer::new())
//!     .with_state(LockManager::in_memory());
//! let to_itself = Request::post("/transfers")
//!     .header("content-type", "application/json")
//!     .body(Body::from(r#"{"from": "alice", "to": "alice"}"#))?;
//! assert_eq!(app.oneshot(to_itself).await?.status(), StatusCode::UNPROCESSABLE_ENTITY);
//! # Ok(())
//! # }
//! ```
//!
//! # Validate a body before the lock
//!
//! `Locked<Json<T>>` locks after `Json<T>` has its value. A body that `T` rejects thus never waits for a lock. With
//! `try_from`, serde validates the value, and axum responds with 422:
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Json, Router, body::Body, http::{Request, StatusCode}, routing::post};
//! use serde::Deserialize;
//! use tower::ServiceExt;
//! use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
//!
//! /// The body as a client sends it.
//! #[derive(Deserialize)]
//! struct Sent {
//!     account: String,
//!     cents: i64,
//! }
//!
//! /// A valid body.
//! #[derive(Deserialize)]
//! #[serde(try_from = "Sent")]
//! struct Payment {
//!     account: String,
//!     cents: u64,
//! }
//!
//! impl TryFrom<Sent> for Payment {
//!     type Error = &'static str;
//!
//!     fn try_from(sent: Sent) -> Result<Self, Self::Error> {
//!         let cents = u64::try_from(sent.cents).map_err(|_| "`cents` must not be negative")?;
//!         Ok(Self { account: sent.account, cents })
//!     }
//! }
//!
//! impl LockTarget for Payment {
//!     fn lock_keys(&self) -> LockKeys {
//!         LockKey::from_parts(["account", &self.account]).into()
//!     }
//! }
//!
//! async fn pay(Locked(Json(payment), _guard): Locked<Json<Payment>>) -> String {
//!     format!("{} cents to {}", payment.cents, payment.account)
//! }
//!
//! let locks = LockManager::in_memory();
//! let app: Router = Router::new()
//!     .route("/payments", post(pay))
//!     .layer(LockScopeLayer::new())
//!     .with_state(locks.clone());
//! // The account is locked, and the invalid payment does not wait for it.
//! let _held = locks.acquire(LockKey::from_parts(["account", "alice"])).await?;
//! let invalid = Request::post("/payments")
//!     .header("content-type", "application/json")
//!     .body(Body::from(r#"{"account": "alice", "cents": -1}"#))?;
//! assert_eq!(app.oneshot(invalid).await?.status(), StatusCode::UNPROCESSABLE_ENTITY);
//! # Ok(())
//! # }
//! ```
//!
//! A validation that needs the state, or another response, is an extractor of your own. `Valid<Payment>` implements
//! `FromRequest`, which extracts `Json<Payment>` and validates it, and [`LockTarget`](crate::LockTarget).
//! `Locked<Valid<Payment>>` then validates before it locks. What depends on data that other requests change, such as a
//! balance, is checked in the handler, under the lock.
//!
//! # Form and length
//!
//! A key has at most 512 bytes after percent-encoding. A longer key is cut and ends in a SHA-256 of the whole.
//! [`LockKey`](crate::LockKey) lists the characters that are encoded. In Redis, the name of the lock is the
//! [prefix](super::redis#settings) and then the key. One acquire takes at most 16 keys.
