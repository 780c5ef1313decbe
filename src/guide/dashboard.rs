//! Dashboard: for programs that show operators the locks of a process.
//!
//! The feature `dashboard` has a page for operators:
//! [`dashboard::router`](https://docs.rs/tower-lock/latest/tower_lock/dashboard/). `examples/bank` serves it:
//! `cargo run --features dashboard --example bank`.
//!
//! Nested at `/ops/locks`, the page is at that path only: axum responds to `/ops/locks/` with 404.
//!
//! ![The dashboard: totals, plots of the last minutes, and the keys with the most waiters][picture]
//!
//! [picture]: https://raw.githubusercontent.com/tower-lock/tower-lock/main/docs/dashboard.png
//!
//! | question | part of the page |
//! |---|---|
//! | which keys are held, for how long, by which [layer](crate::LockLayer::name), and how many acquires wait | *Keys*, by waiters, by age or by the lease that is left |
//! | which keys are waited for most often | *Hottest keys* |
//! | are handlers slow | *Hold*: its percentiles are those of the handlers |
//! | are requests rejected, and why | *Rejected*, with the outcomes since the start |
//! | why were locks lost | *Lost*, with the reasons since the start |
//! | is the backend to blame | *Backend*: each server and part with its state and the cause of its outage, and the last eight incidents. *All incidents* lists up to 256 |
//! | did the process pause | *Backend*: `this process paused` |
//! | which owner holds a key, in any process, and in which mode | *Look up a key*, in the backend |
//! | which owners of this process share a key, or have its permits | *Look up a key*: the oldest hundred |
//!
//! Each page shows one process and names it. Behind a load balancer, pin the session to one process: the page warns if
//! another one replies. For all processes together, use the metrics. Only *Look up a key* and a forced release see the
//! whole backend. The page shows a key as it is named in the backend. Control, direction and invisible characters are
//! shown as `\u202e`, and a backslash as two.
//!
//! # Protect it
//!
//! The dashboard responds with 403 until a middleware inserts a `dashboard::Operator` into the request. Keys can contain
//! personal data, so authenticate operators, not users. The page receives its data from `EventSource`, which sends
//! cookies, Basic credentials and client certificates, but no bearer token.
//!
//! *Basic authentication*, over TLS. The browser asks for name and password:
//!
//! ```
//! # #[cfg(not(feature = "dashboard"))]
//! # fn main() {}
//! # #[cfg(feature = "dashboard")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use axum::extract::{Request, State};
//! use axum::http::{StatusCode, header};
//! use axum::middleware::{Next, from_fn_with_state};
//! use axum::response::{IntoResponse, Response};
//! use sha2::{Digest, Sha256};
//! use tower_lock::LockManager;
//! use tower_lock::dashboard::{self, Operator};
//!
//! /// The name of an operator, and the value of `Authorization`: `Basic`, and `name:password` in base64.
//! type Login = (&'static str, String);
//!
//! async fn basic(State(logins): State<Vec<Login>>, mut request: Request, next: Next) -> Response {
//!     let sent = request.headers().get(header::AUTHORIZATION);
//!     let sent = sent.map_or(&b""[..], |value| value.as_bytes());
//!     // The time of this comparison does not depend on the password.
//!     let is_sent = |login: &&Login| Sha256::digest(sent) == Sha256::digest(&login.1);
//!     match logins.iter().find(is_sent) {
//!         Some((name, _)) => {
//!             request.extensions_mut().insert(Operator::new(*name));
//!             next.run(request).await
//!         }
//!         None => {
//!             let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"locks\"")];
//!             (StatusCode::UNAUTHORIZED, ask).into_response()
//!         }
//!     }
//! }
//!
//! // From a secret of the deployment.
//! let logins = vec![("ada", "Basic YWRhOmxvdmVsYWNl".to_owned())];
//! let board = dashboard::router(LockManager::in_memory()).layer(from_fn_with_state(logins, basic));
//! let app: Router = Router::new().nest("/ops/locks", board);
//! # use axum::body::Body;
//! # use tower::ServiceExt as _;
//! # let get = || Request::get("/ops/locks");
//! # let closed = app.clone().oneshot(get().body(Body::empty())?).await?;
//! # assert_eq!(closed.status(), StatusCode::UNAUTHORIZED);
//! # let login = get().header("authorization", "Basic YWRhOmxvdmVsYWNl");
//! # assert_eq!(app.oneshot(login.body(Body::empty())?).await?.status(), StatusCode::OK);
//! # Ok(())
//! # }
//! ```
//!
//! *OpenID Connect through a proxy*, such as oauth2-proxy with `--pass-user-headers`. The proxy authenticates and names
//! the operator in a header. Clients must not reach the service around the proxy, or they name themselves: bind this
//! router to a port that only the proxy reaches. The proxy changes `Host`, so the origin is set:
//!
//! ```
//! # #[cfg(not(feature = "dashboard"))]
//! # fn main() {}
//! # #[cfg(feature = "dashboard")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use axum::extract::Request;
//! use axum::http::StatusCode;
//! use axum::middleware::{Next, from_fn};
//! use axum::response::{IntoResponse, Response};
//! use tower_lock::LockManager;
//! use tower_lock::dashboard::{Dashboard, Operator};
//!
//! const OPERATORS: [&str; 2] = ["ada@example.com", "grace@example.com"];
//!
//! async fn from_proxy(mut request: Request, next: Next) -> Response {
//!     let name = request.headers().get("x-forwarded-email");
//!     let name = name.and_then(|name| name.to_str().ok());
//!     let Some(name) = OPERATORS.into_iter().find(|it| Some(*it) == name) else {
//!         return StatusCode::FORBIDDEN.into_response();
//!     };
//!     request.extensions_mut().insert(Operator::new(name));
//!     next.run(request).await
//! }
//!
//! let board = Dashboard::new(LockManager::in_memory()).origin("https://ops.example.com");
//! let board = board.router().layer(from_fn(from_proxy));
//! let ops: Router = Router::new().nest("/ops/locks", board);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let serving = axum::serve(listener, ops.clone());
//! # drop(serving);
//! # use axum::body::Body;
//! # use tower::ServiceExt as _;
//! # for (name, status) in [("ada@example.com", 200), ("eve@example.com", 403)] {
//! #     let get = Request::get("/ops/locks").header("x-forwarded-email", name);
//! #     assert_eq!(ops.clone().oneshot(get.body(Body::empty())?).await?.status(), status);
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! *Client certificates* (mTLS), verified by the server that ends TLS, here nginx. The browser presents the certificate
//! of the operator. As above, only the proxy may reach this port:
//!
//! ```text
//! server {
//!     listen 443 ssl;
//!     server_name ops.example.com;
//!     ssl_client_certificate /etc/nginx/operators-ca.pem;
//!     ssl_verify_client on;
//!     location /ops/locks {
//!         proxy_pass http://127.0.0.1:8081;
//!         proxy_set_header Host $host;
//!         proxy_set_header X-Client-Verify $ssl_client_verify;
//!         proxy_set_header X-Client-Name $ssl_client_s_dn;
//!         proxy_buffering off;
//!     }
//! }
//! ```
//!
//! ```
//! # #[cfg(not(feature = "dashboard"))]
//! # fn main() {}
//! # #[cfg(feature = "dashboard")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use axum::extract::Request;
//! use axum::http::StatusCode;
//! use axum::middleware::{Next, from_fn};
//! use axum::response::{IntoResponse, Response};
//! use tower_lock::LockManager;
//! use tower_lock::dashboard::{self, Operator};
//!
//! async fn with_certificate(mut request: Request, next: Next) -> Response {
//!     let headers = request.headers();
//!     let is_verified = headers.get("x-client-verify").is_some_and(|value| value == "SUCCESS");
//!     let subject = headers.get("x-client-name").and_then(|value| value.to_str().ok());
//!     let Some(operator) = subject.filter(|_| is_verified).map(Operator::new) else {
//!         return StatusCode::FORBIDDEN.into_response();
//!     };
//!     request.extensions_mut().insert(operator);
//!     next.run(request).await
//! }
//!
//! let board = dashboard::router(LockManager::in_memory()).layer(from_fn(with_certificate));
//! let ops: Router = Router::new().nest("/ops/locks", board);
//! # use axum::body::Body;
//! # use tower::ServiceExt as _;
//! # for (verify, status) in [("SUCCESS", 200), ("NONE", 403)] {
//! #     let get = Request::get("/ops/locks").header("x-client-verify", verify);
//! #     let get = get.header("x-client-name", "CN=ada");
//! #     assert_eq!(ops.clone().oneshot(get.body(Body::empty())?).await?.status(), status);
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # Release a key from the page
//!
//! By default, the dashboard is read-only. `Dashboard::allow_force_release` takes a callback that receives the
//! operator, the key and a reason, and can reject the release. An event of the target `tower_lock::audit` follows. Only
//! the owner that the page shows is released; of several, the one that the operator chooses. If another one holds the
//! key by then, nothing happens. If another process holds the key, the owner is the lease of that process, which hands
//! it off among its requests. The release then ends the hold of whichever of its requests holds the key by then, or of
//! all its requests that share the key.
//!
//! # Shut down with open pages
//!
//! Each page has an open stream, and a graceful shutdown of axum waits for it. The streams end with the first call of
//! [`shutdown`](crate::LockManager::shutdown). Call it when the server begins to stop, as
//! [for all programs](super::operations#shut-down), and not only afterwards: a stream otherwise ends after up to 60 s.
