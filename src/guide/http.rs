//! HTTP: for developers locking routes, and for authors of clients.
//!
//! # What a client sees
//!
//! | situation | status | `Retry-After` | problem type |
//! |---|---|---|---|
//! | another owner held the lock for the whole wait | 409, or [`status`](crate::LockLayer::status), such as 423 | yes | `resource-busy` |
//! | no [permit](crate::LockLayer::permits) was free for the whole wait | 429, or [`status`](crate::LockLayer::status), such as 409 | yes | `permits-exhausted` |
//! | too many waiters for this key | 429 | yes | `too-many-waiters` |
//! | too many waiters in this manager | 503 | yes | `lock-overload` |
//! | the backend is unavailable | 503 | yes | `lock-unavailable` |
//! | the backend rejects this service: login, permission, certificate | 503 | no | `lock-unavailable` |
//! | the manager is shutting down: the request is new, or waited to the end of the grace | 503 | yes | `shutting-down` |
//! | the lock was lost before the head was sent | 500 | no | `lock-lost` |
//! | the lock was lost while the body streamed | the body ends with an error | | |
//! | the request has no usable key | 400 | no | `lock-key-invalid` |
//! | no route matches, under a layer that locks by a path parameter; a safe method runs the fallback instead | 404 | no | `no-route` |
//! | the program is wrong: no request to the route has a key, or [`Locked`](crate::Locked) has no scope | 500 | no | `lock-misconfigured` |
//! | [`read_body_first`](crate::LockLayer::read_body_first): the body is larger than its limit | 413 | no | `about:blank` |
//! | `read_body_first`: the body is incomplete at its deadline | 408 | no | `about:blank` |
//! | the body ends with an error, while `read_body_first` reads it or the request waits | 400, or 413 above the limit of a layer outside | no | `about:blank` |
//! | the key in the backend holds something else, or an owner has a permit and acquires the lock shared, or the reverse | 500 | no | `lock-key-conflict` |
//! | one owner acquired one lock more than 64 times | 500 | no | `lock-reentrancy` |
//! | an owner holds the lock shared, or a permit, and acquires it exclusively | 500 | no | `lock-upgrade` |
//! | the program set an option out of bounds, or the backend does not support the mode | 500 | no | `lock-option-invalid` |
//! | the handler returned an [`Error`](crate::Error) | that of its kind: 400, 409, 429, 500 or 503 | no | `lock-failed-in-handler` |
//!
//! A wait that is shorter than a round trip to the backend ends as 503, because the state of the lock is unknown by
//! then.
//!
//! The body is `application/problem+json` (RFC 9457), with types such as
//! `resource-busy`, each a section of [`problems`](crate::guide::problems). A client
//! that accepts only text receives `text/plain`. A gRPC client receives a status in the trailers. No response contains
//! the key.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::convert::Infallible;
//!
//! use http::{Request, Response, StatusCode};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_lock::{ErrorKind, LockKey, LockLayer, LockManager, LockRejection};
//!
//! let locks = LockManager::in_memory();
//! let service = ServiceBuilder::new()
//!     .layer(LockLayer::by_header(locks.clone(), "x-tenant").no_wait())
//!     .service(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
//!
//! let guard = locks.acquire(LockKey::from_parts(["x-tenant", "acme"])).await?;
//! let request = Request::put("/").header("x-tenant", "acme").body(String::new())?;
//! let response = service.oneshot(request).await?;
//!
//! assert_eq!(response.status(), StatusCode::CONFLICT);
//! assert!(response.headers().contains_key("retry-after"));
//! let rejection = response.extensions().get::<LockRejection>().unwrap();
//! assert_eq!(rejection.kind(), ErrorKind::Busy);
//! # drop(guard);
//! # Ok(())
//! # }
//! ```
//!
//! # Settings
//!
//! | to | set | default |
//! |---|---|---|
//! | limit the wait | [`wait`](crate::LockLayer::wait), [`no_wait`](crate::LockLayer::no_wait) | 5 s, or the manager's |
//! | limit the hold | [`max_hold`](crate::LockLayer::max_hold), [`lease`](crate::LockLayer::lease) without renewals | 5 min |
//! | read the body before the lock | [`read_body_first`](crate::LockLayer::read_body_first) | the lock is acquired at the head |
//! | let requests read bodies of any type while they wait | [`read_body_ahead`](crate::LockLayer::read_body_ahead) | bodies of axum |
//! | lock GET, HEAD, OPTIONS and TRACE as well | [`all_methods`](crate::LockLayer::all_methods) | they pass without a lock |
//! | let some requests pass without a lock | [`skip`](crate::LockLayer::skip) | safe methods |
//! | let GET and HEAD share their locks | [`shared_reads`](crate::LockLayer::shared_reads) | they pass without a lock |
//! | let several requests of one key run at a time | [`permits`](crate::LockLayer::permits), [`permits_with`](crate::LockLayer::permits_with) | one |
//! | name what the keys of a parameter are of | [`kind`](crate::LockLayer::kind) | the name of the parameter |
//! | respond with 423 in place of 409 | [`status`](crate::LockLayer::status) | 409 |
//! | replace rejections | [`on_reject`](crate::LockLayer::on_reject) | problem details |
//! | name the layer in metrics and events | [`name`](crate::LockLayer::name) | none |
//! | release before the body is complete | [`release_at_head`](crate::LockLayer::release_at_head) | when the response is complete |
//! | let the handler finish under a lost lock | [`on_lost`](crate::LockLayer::on_lost) | drop the handler |
//! | run unlocked while the backend is unavailable | [`on_unavailable`](crate::LockLayer::on_unavailable) | 503 |
//! | reject nothing, and count what would be rejected | [`observe_only`](crate::LockLayer::observe_only) | off |
//!
//! A [`LockScopeLayer`](crate::LockScopeLayer) has the settings of the name, the wait, the lease, the hold, the status, the loss and
//! the rejection. They apply to [`Locked`](crate::Locked), and so do those of a `LockLayer` around the handler. Without
//! either, a request with `Locked` is rejected with 500 before it acquires a lock.
//!
//! # Layer, extractor or scope
//!
//! | the handler's keys come from | use |
//! |---|---|
//! | the head of the request | [`LockLayer`](crate::LockLayer) |
//! | the body, or another extractor | [`Locked`](crate::Locked) under a [`LockScopeLayer`](crate::LockScopeLayer) |
//! | the same, and the handler only reads | [`LockedShared`](crate::LockedShared) in place of `Locked` |
//! | a look-up in the handler | [`LockScope::acquire`](crate::LockScope::acquire) |
//!
//! A handler returns an [`Error`](crate::Error) with `?`. It may have worked before, so the response is
//! `lock-failed-in-handler`: it promises nothing, and has no `Retry-After`. A handler that has only read can return a
//! [`LockRejection`](crate::LockRejection) in its place, which is the response of a layer:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, body::Body, extract::State, http::{Request, StatusCode}, routing::post};
//! use tower::ServiceExt;
//! use tower_lock::{Error, LockManager, LockRejection};
//!
//! async fn first(State(locks): State<LockManager>) -> Result<&'static str, LockRejection> {
//!     let _guard = locks.acquire("month").no_wait().await?;
//!     Ok("closed")
//! }
//!
//! async fn last(State(locks): State<LockManager>) -> Result<&'static str, Error> {
//!     // Here, it sends a message.
//!     let _guard = locks.acquire("month").no_wait().await?;
//!     Ok("sent and closed")
//! }
//!
//! let locks = LockManager::in_memory();
//! let _job = locks.acquire("month").await?;
//! let app: Router = Router::new()
//!     .route("/first", post(first))
//!     .route("/last", post(last))
//!     .with_state(locks);
//! for (path, is_retried) in [("/first", true), ("/last", false)] {
//!     let response = app.clone().oneshot(Request::post(path).body(Body::empty())?).await?;
//!     assert_eq!(response.status(), StatusCode::CONFLICT);
//!     assert_eq!(response.headers().contains_key("retry-after"), is_retried);
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! A [`LockScopeLayer`](crate::LockScopeLayer) keeps the locks of [`Locked`](crate::Locked) until the response is complete, and
//! aborts the handler if one is lost.
//!
//! # Work after the response
//!
//! The lock of a layer is released with the response, and [`Held`](crate::Held) only views it: in a task that continues
//! after 202, [`is_held`](crate::Held::is_held) returns `false`, [`lost`](crate::Held::lost) never completes, and the next
//! request runs beside it. The guard of
//! [`Locked`](crate::Locked) keeps the lock until the task drops it, for at most
//! [`max_hold`](crate::LockScopeLayer::max_hold). The task then watches [`lost`](crate::Held::lost) itself.
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use axum::{Router, body::Body, http::Request, routing::post};
//! # use tower::ServiceExt;
//! use std::time::Duration;
//!
//! use axum::extract::Query;
//! use axum::http::StatusCode;
//! use serde::Deserialize;
//! use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
//!
//! #[derive(Deserialize)]
//! struct Export {
//!     account: String,
//! }
//!
//! impl LockTarget for Export {
//!     fn lock_keys(&self) -> LockKeys {
//!         LockKey::from_parts(["account", &self.account]).into()
//!     }
//! }
//!
//! async fn export(Locked(Query(export), guard): Locked<Query<Export>>) -> StatusCode {
//!     tokio::spawn(async move {
//!         let work = tokio::time::sleep(Duration::from_secs(20));
//!         tokio::select! {
//!             () = work => println!("exported {}", export.account),
//!             () = guard.lost() => println!("the lock is lost"),
//!         }
//!     });
//!     StatusCode::ACCEPTED
//! }
//!
//! let scope = LockScopeLayer::new().no_wait();
//! let locks = LockManager::in_memory();
//! let app: Router = Router::new().route("/exports", post(export)).layer(scope).with_state(locks);
//! # let mut statuses = Vec::new();
//! # for _ in 0..2 {
//! #     let request = Request::post("/exports?account=7").body(Body::empty())?;
//! #     statuses.push(app.clone().oneshot(request).await?.status());
//! # }
//! # assert_eq!(statuses, [StatusCode::ACCEPTED, StatusCode::CONFLICT]);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors in a format of your own
//!
//! One function around all layers, scopes and handlers replaces the bodies of all rejections. Status and `Retry-After`
//! remain. A layer has [`on_reject`](crate::LockLayer::on_reject) for its own.
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::body::Body;
//! use axum::extract::State;
//! use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
//! use axum::http::{HeaderValue, Request, StatusCode};
//! use axum::response::Response;
//! use axum::routing::put;
//! use axum::{Router, middleware};
//! use tower::ServiceExt;
//! use tower_lock::{Error, LockKey, LockLayer, LockManager, LockRejection};
//!
//! async fn in_company_format(response: Response) -> Response {
//!     let Some(rejection) = response.extensions().get::<LockRejection>() else {
//!         return response;
//!     };
//!     let body = serde_json::json!({ "error": rejection.problem_type() }).to_string();
//!     let (mut head, _) = response.into_parts();
//!     head.headers.remove(CONTENT_LENGTH);
//!     head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
//!     Response::from_parts(head, Body::from(body))
//! }
//!
//! async fn close(State(locks): State<LockManager>) -> Result<(), Error> {
//!     locks.acquire("month").no_wait().await.map(drop)
//! }
//!
//! let locks = LockManager::in_memory();
//! let app: Router = Router::new()
//!     .route("/orders/{id}", put(async || ()))
//!     .layer(LockLayer::by_path(locks.clone()).no_wait())
//!     .route("/close", put(close))
//!     .layer(middleware::map_response(in_company_format))
//!     .with_state(locks.clone());
//!
//! let _job = locks.acquire([LockKey::from_path("/orders/42"), LockKey::new("month")]).await?;
//! for (path, can_retry) in [("/orders/42", true), ("/close", false)] {
//!     let response = app.clone().oneshot(Request::put(path).body(Body::empty())?).await?;
//!     assert_eq!(response.status(), StatusCode::CONFLICT);
//!     assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
//!     assert_eq!(response.headers().contains_key("retry-after"), can_retry);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A service that also has gRPC routes leaves out the responses with the header `grpc-status`.
//!
//! # Clients that are not trusted
//!
//! A layer acquires the lock when the head of a request has arrived. A client that sends its body slowly then holds the
//! key, and all other requests for it wait or are rejected. [`max_hold`](crate::LockLayer::max_hold) ends that after
//! 5 min by default. [`read_body_first`](crate::LockLayer::read_body_first) acquires the lock after the body:
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use axum::{Router, body::Body, http::{Request, StatusCode}, routing::put};
//! use tower::ServiceExt;
//! use tower_lock::{LockLayer, LockManager};
//!
//! // At most 64 KiB, complete within 10 s.
//! let layer = LockLayer::by_path(LockManager::in_memory())
//!     .read_body_first(64 * 1024, Duration::from_secs(10));
//! let app: Router = Router::new()
//!     .route("/orders/{id}", put(async |order: String| order))
//!     .route_layer(layer);
//!
//! let too_large = Request::put("/orders/42").body(Body::from(vec![b'x'; 64 * 1024 + 1]))?;
//! assert_eq!(app.oneshot(too_large).await?.status(), StatusCode::PAYLOAD_TOO_LARGE);
//! # Ok(())
//! # }
//! ```
//!
//! - A client that must not write the resource goes no further than authentication outside of the layer.
//! - A client that reads its response slowly holds the lock too. A response in memory, or
//!   [`release_at_head`](crate::LockLayer::release_at_head), releases it at the head. The reply of a unary gRPC call is
//!   not in memory for the layer: see `examples/tonic`.
//! - The keys of a layer come from the client. [`max_waiters`](crate::LockManagerBuilder::max_waiters) bounds the
//!   requests that wait. A limit of concurrent requests outside of the layer bounds the memory of their bodies.
//!
//! # Bodies of requests that wait
//!
//! The requests of an HTTP/2 connection share its window: 1 MiB in hyper. Bodies that no handler reads fill it. The holder
//! of the lock and requests for other keys cannot send their bodies then. Behind a proxy, and in a gRPC channel, these
//! are requests of many clients. So a request that waits for its lock reads its body, within two bounds:
//!
//! | bound | default | setting |
//! |---|---|---|
//! | bytes per request | 64 KiB | [`read_ahead`](crate::LockManagerBuilder::read_ahead) |
//! | bytes of all requests of a manager | 32 MiB | [`max_read_ahead`](crate::LockManagerBuilder::max_read_ahead) |
//!
//! - The handler receives these bytes first, and then the rest with its trailers. It does not see where a frame ended.
//! - A request that does not wait reads nothing. Nor does one with the header `Expect`, because reading asks its client
//!   for the body.
//! - A body that fails ends the wait with 400, or with 413 if a layer outside limits its length. A client that
//!   disconnects with a part of its body unsent leaves the queue.
//! - A layer reads bodies of axum. For those of hyper, of tonic and of other layers in one `ServiceBuilder`, set
//!   [`read_body_ahead`](crate::LockLayer::read_body_ahead).
//! - [`Locked`](crate::Locked) reads them in a [`LockScopeLayer`](crate::LockScopeLayer), which allocates once for each
//!   request with a body. In a `LockLayer` it does so only if the layer had to wait as well: put a `LockScopeLayer`
//!   between them.
//!
//! Beyond the bounds, the body is not polled until the lock is acquired:
//!
//! - The next bytes of *one* such body can fill the window of the connection. The setting `initial_stream_window_size` of
//!   hyper's server, for instance 64 KiB, bounds them per request. `initial_connection_window_size`, for instance 16 MiB,
//!   has room for all requests of a connection, of which hyper serves 200 at a time.
//! - Over HTTP/1.1, the server does not notice that the client disconnects.
//! - A timeout between frames, such as `RequestBodyTimeoutLayer` of tower-http, counts from the last poll without a
//!   frame. It includes the time until the handler reads, so it must be longer than the wait.
//!
//! # In an existing axum app
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use axum::{Router, extract::Path, routing::get};
//! use tower_lock::{Held, LockLayer, LockManager};
//!
//! async fn show(Path(order): Path<String>) -> String {
//!     format!("order {order}")
//! }
//!
//! async fn update(held: Held, Path(order): Path<String>) -> String {
//!     format!("order {order} with token {}", held.fencing_token())
//! }
//!
//! let locks = LockManager::in_memory();
//! let one_at_a_time = LockLayer::by_path_param(locks, "order").wait(Duration::from_secs(2));
//! let app: Router = Router::new()
//!     .route("/orders/{order}", get(show).put(update).route_layer(one_at_a_time));
//! # use axum::{body::Body, http::{Request, StatusCode}};
//! # use tower::ServiceExt;
//! # let request = Request::put("/orders/42").body(Body::empty())?;
//! # assert_eq!(app.oneshot(request).await?.status(), StatusCode::OK);
//! # Ok(())
//! # }
//! ```
//!
//! The manager is needed only by the layer here. `Locked`, and handlers that call `acquire`, need it in the state:
//! `.with_state(locks)`. [`Locked`](crate::Locked#a-state-with-other-values) shows a state with other values.
//!
//! The documentation of [`LockLayer`](crate::LockLayer#where-to-put-it) states where to put the layer among
//! authentication, timeouts, limits, decompression, gRPC-Web and a store of idempotent responses.
//!
//! # When the lock is released
//!
//! The lock is released when the response is complete. A body in memory is complete with its head. A streaming body
//! holds the lock until it ends, fails or is dropped. The response does not wait for the backend.
//!
//! | end of the request | then |
//! |---|---|
//! | the client disconnects while `read_body_first` reads its body | nothing: it is in no queue yet |
//! | the client disconnects while it waits | it leaves the queue. Over HTTP/1.1, it does not if more of its body than the [bound](#bodies-of-requests-that-wait), or a further request, is unread |
//! | the client disconnects while the handler runs | the handler is dropped, then the lock is released |
//! | the handler panics, or an outer timeout ends it | the same |
//! | the connection is upgraded (101), or the request is `HEAD` | the lock is released at the head |
//! | the lock is lost | the handler is dropped, and the client receives 500 `lock-lost` |
//!
//! A proxy in front of the service can hide that its client has disconnected. HAProxy continues such a request, and the
//! handler runs for no client, unless `option abortonclose` is set. nginx closes the connection to the service by
//! default (`proxy_ignore_client_abort off`).
//!
//! A request that waits keeps a stream of its HTTP/2 connection:
//! [`max_waiters_per_key`](crate::LockManagerBuilder::max_waiters_per_key) states which settings leave streams for other
//! keys.
//!
//! A response over HTTP/1.0 without a length cannot show that it was cut short. There, a body that ends with an error
//! looks complete.
//!
//! # Advice for clients
//!
//! - After 409, 429 or 503 with `Retry-After`: retry after that time. The request did not run.
//! - After `lock-failed-in-handler`, with any status: the request may have run in part. Read the resource before you retry.
//! - After 500 `lock-lost`: the request may have run in part. Read the resource before you retry.
//! - After 408: the request did not run. Send it again, with its body at once.
//! - After 400, 404, 413, another 500, or 503 without `Retry-After`: the same request fails again.
