//! The constructors of [`LockLayer`], one for each source of keys, and the kind of keys.

use std::borrow::Cow;
#[cfg(feature = "axum")]
use std::fmt::Display;
#[cfg(feature = "axum")]
use std::str::FromStr;
use std::sync::Arc;

use http::HeaderName;
use http::header::HOST;
use http::request::Parts;

use super::layer::LockLayer;
use crate::LockManager;
#[cfg(feature = "axum")]
use crate::layer::keys::PathParam;
use crate::layer::keys::{
    ByFn, ByPath, ByValue, IntoLockKeys, KeyExtractor, Keyed, LockTarget, Place, of_extension,
};

impl LockLayer<ByPath> {
    /// Creates a layer with one lock per path. The key is [`LockKey::from_path`](crate::LockKey::from_path).
    ///
    /// Two requests that reach the same handler through one route with the same decoded path parameters take the same
    /// lock, on either side of a middleware that adds or removes slashes. The path is therefore decoded once: `a%40b` is
    /// `a@b`, and `%2F` is a slash. A run of slashes is one slash, and a slash at the end is removed. At worst, two
    /// resources share a lock. Case is kept, and query and host are not part of the key. Inside a nested axum router, the
    /// path is the original one. A handler behind two routes has the locks of two paths.
    ///
    /// The path and its parameter are two keys: a layer [`by_path_param`](LockLayer::by_path_param) on the same route, or on
    /// another one of the resource, does not exclude this layer.
    ///
    /// A path with a segment `.` or `..`, or with a `%` that two hexadecimal digits do not follow, is rejected with
    /// 400. Clients and proxies resolve dot segments, and routers do not.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::convert::Infallible;
    /// use http::{Request, Response, StatusCode};
    /// use tower::{ServiceBuilder, ServiceExt, service_fn};
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let service = ServiceBuilder::new()
    ///     .layer(LockLayer::by_path(locks.clone()).no_wait())
    ///     .service(service_fn(|_: Request<String>| async {
    ///         Ok::<_, Infallible>(Response::new(String::new()))
    ///     }));
    ///
    /// let nightly_job = locks.acquire(LockKey::from_path("/users/a@b.c")).await?;
    /// let request = Request::put("/users/a%40b.c").body(String::new())?;
    /// assert_eq!(service.oneshot(request).await?.status(), StatusCode::CONFLICT);
    /// # drop(nightly_job);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_path(locks: LockManager) -> Self {
        Self::new(locks, ByPath)
    }
}

impl LockLayer<ByValue> {
    /// Creates a layer with one lock per value of a parameter of the axum route.
    ///
    /// The key is `LockKey::from_parts([name, value])` with the decoded value. Routes that use one name for a
    /// parameter share locks: `/orders/{id}` and `/customers/{id}` exclude each other, unless one of them sets
    /// [`kind`](Self::kind). [`Locked`](crate::Locked) and jobs share them if they use the same two parts. A layer
    /// [`by_path`](LockLayer::by_path) has other keys, and does not exclude this one.
    ///
    /// A route without the parameter, or with two of this name, is a mistake of the program. So is a layer around
    /// the `Router`, where no parameters exist yet. Each such request is rejected with 500 `lock-misconfigured`,
    /// and the layer logs the mistake once, as an error. Under `Router::layer`, a request that no route matches is
    /// rejected with 404, without the inner service: a fallback must not run unlocked. Safe methods pass all of that, and
    /// reach the fallback without a key.
    ///
    /// For a `Router` inside another one, use `nest` or `nest_service`. Behind `route_service`, wrapped in another service,
    /// its unmatched requests are rejected with 500: they have the matched path of the outer route, which lacks the
    /// parameter.
    ///
    /// # Panics
    ///
    /// Panics if `name` is empty, begins with `:` or contains `{`, `}`, `*` or `/`: for `/files/{*path}`, the name is
    /// `path`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, body::Body, http::{Request, StatusCode}, routing::post};
    /// use tower::ServiceExt;
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let app: Router = Router::new()
    ///     .route("/accounts/{account}/close", post(async || "closed"))
    ///     .route_layer(LockLayer::by_path_param(locks.clone(), "account").no_wait());
    ///
    /// let nightly_job = locks.acquire(LockKey::from_parts(["account", "7"])).await?;
    /// let request = Request::post("/accounts/7/close").body(Body::empty())?;
    /// assert_eq!(app.oneshot(request).await?.status(), StatusCode::CONFLICT);
    /// # drop(nightly_job);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "axum")]
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    pub fn by_path_param(locks: LockManager, name: impl Into<Cow<'static, str>>) -> Self {
        let param = PathParam::new("by_path_param", name.into());
        Self::new(locks, ByValue::of(Place::PathParam(param)))
    }

    /// Creates a layer with one lock per parsed value of a parameter of the axum route.
    ///
    /// All texts that `T` parses to one value are one lock, such as `7` and `07`, or the spellings of a UUID. The key
    /// is `LockKey::from_parts([name, &value.to_string()])`. A value that does not parse is rejected with 400.
    /// Mistakes and unmatched requests are rejected as those of [`by_path_param`](Self::by_path_param).
    ///
    /// # Panics
    ///
    /// Panics if `name` is one that `by_path_param` rejects.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, body::Body, http::{Request, StatusCode}, routing::post};
    /// use tower::ServiceExt;
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let app: Router = Router::new()
    ///     .route("/accounts/{account}/close", post(async || "closed"))
    ///     .route_layer(LockLayer::by_path_param_as::<u64>(locks.clone(), "account").no_wait());
    ///
    /// let nightly_job = locks.acquire(LockKey::from_parts(["account", "7"])).await?;
    /// let request = Request::post("/accounts/007/close").body(Body::empty())?;
    /// assert_eq!(app.oneshot(request).await?.status(), StatusCode::CONFLICT);
    /// # drop(nightly_job);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "axum")]
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    pub fn by_path_param_as<T>(locks: LockManager, name: impl Into<Cow<'static, str>>) -> Self
    where
        T: FromStr + Display,
    {
        let param = PathParam::new("by_path_param_as", name.into()).parsed::<T>();
        Self::new(locks, ByValue::of(Place::PathParam(param)))
    }
    /// Creates a layer with one lock per combination of values of several parameters of the axum route.
    ///
    /// The key is `LockKey::from_parts([name, value, name, value, ..])`, in the order of `names`. Mistakes and
    /// unmatched requests are rejected as those of [`by_path_param`](Self::by_path_param).
    ///
    /// # Panics
    ///
    /// Panics if `names` is empty, contains a name twice, or contains a name that `by_path_param` rejects.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, body::Body, http::{Request, StatusCode}, routing::post};
    /// use tower::ServiceExt;
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let layer = LockLayer::by_path_params(locks.clone(), ["shop", "order"]).no_wait();
    /// let app: Router = Router::new()
    ///     .route("/shops/{shop}/orders/{order}/ship", post(async || "shipped"))
    ///     .route_layer(layer);
    ///
    /// let key = LockKey::from_parts(["shop", "berlin", "order", "7"]);
    /// let nightly_job = locks.acquire(key).await?;
    /// let request = Request::post("/shops/berlin/orders/7/ship").body(Body::empty())?;
    /// assert_eq!(app.oneshot(request).await?.status(), StatusCode::CONFLICT);
    /// # drop(nightly_job);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "axum")]
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    pub fn by_path_params<I>(locks: LockManager, names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Cow<'static, str>>,
    {
        let mut params = Vec::<PathParam>::new();
        for name in names {
            let param = PathParam::new("by_path_params", name.into());
            assert!(
                !params.iter().any(|other| other.name() == param.name()),
                "`LockLayer`: invalid `by_path_params`: `{}` is listed twice",
                param.name()
            );
            params.push(param);
        }
        assert!(
            !params.is_empty(),
            "`LockLayer`: invalid `by_path_params`: list at least one parameter"
        );
        Self::new(locks, ByValue::of(Place::PathParams(params.into())))
    }

    /// Creates a layer with one lock per value of a header.
    ///
    /// The key is `LockKey::from_parts([name, value])`, with the name in lower case. A request is rejected with 400
    /// if the header is missing, repeated or empty. The header `host` is read as by [`by_host`](Self::by_host).
    ///
    /// HTTP/2 has no `connection`, nor the headers that it names, such as `keep-alive` and `upgrade`: a layer by one of
    /// them rejects each request over HTTP/2. It may send the cookies of a request in several `cookie` lines, which
    /// count as repeated. Lock by one cookie, in a closure ([`by_fn`](LockLayer::by_fn)), or by what the session names.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not a header name.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_header(LockManager::in_memory(), "x-account");
    /// # drop(layer);
    /// ```
    pub fn by_header(locks: LockManager, name: impl TryInto<HeaderName>) -> Self {
        let Ok(name) = name.try_into() else {
            panic!("`LockLayer`: invalid `by_header`: not a header name");
        };
        Self::new(locks, ByValue::of(Place::Header(name)))
    }

    /// Creates a layer with one lock per host that clients name.
    ///
    /// HTTP/2 has the host in the target, as `:authority`, and HTTP/1.1 in the header `host` or in the target. The layer
    /// reads both. The key is `LockKey::from_parts(["host", host])`, with the port behind a colon, unless it is 80 or
    /// 443. The host is in lower case, without a user and without a dot at its end, and an IPv6 address in its short form.
    ///
    /// A request is rejected with 400 if it has no host, an invalid one, several headers `host`, or a header and a target
    /// that differ. The layer does not read the headers in which a proxy forwards a host.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::convert::Infallible;
    /// use http::{Request, Response, StatusCode};
    /// use tower::{ServiceBuilder, ServiceExt, service_fn};
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let service = ServiceBuilder::new()
    ///     .layer(LockLayer::by_host(locks.clone()).no_wait())
    ///     .service(service_fn(|_: Request<String>| async {
    ///         Ok::<_, Infallible>(Response::new(String::new()))
    ///     }));
    ///
    /// let migration = locks.acquire(LockKey::from_parts(["host", "shop.example.org"])).await?;
    /// let http1 = Request::put("/").header("host", "Shop.example.org:443").body(String::new())?;
    /// assert_eq!(service.clone().oneshot(http1).await?.status(), StatusCode::CONFLICT);
    /// let http2 = Request::put("https://shop.example.org/").body(String::new())?;
    /// assert_eq!(service.oneshot(http2).await?.status(), StatusCode::CONFLICT);
    /// # drop(migration);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_host(locks: LockManager) -> Self {
        Self::new(locks, ByValue::of(Place::Header(HOST)))
    }

    /// Creates a layer with one lock per value of a query parameter, decoded as a form.
    ///
    /// The key is `LockKey::from_parts([name, value])`. A request is rejected with 400 if the parameter is missing,
    /// repeated or empty, or if its value is not UTF-8.
    ///
    /// # Panics
    ///
    /// Panics if `name` is empty.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_query(LockManager::in_memory(), "account");
    /// # drop(layer);
    /// ```
    pub fn by_query(locks: LockManager, name: impl Into<Cow<'static, str>>) -> Self {
        let name = name.into();
        assert!(
            !name.is_empty(),
            "`LockLayer`: invalid `by_query`: the name of the parameter is empty"
        );
        Self::new(locks, ByValue::of(Place::Query(name)))
    }

    /// Sets the kind of the keys, which is their first part. Defaults to the name of the parameter or header.
    ///
    /// The key is `LockKey::from_parts([kind, value])`. Two layers with the same kind exclude each other for the same value,
    /// and so do jobs and [`Locked`](crate::Locked) with the same two parts. With
    /// [`by_path_params`](LockLayer::by_path_params), the key is `[kind, value, value, ..]`, without the names.
    ///
    /// It compiles after `by_path_param`, `by_path_param_as`, `by_path_params`, `by_header`, `by_host` and `by_query`, before
    /// `read_body_first` and `read_body_ahead`.
    ///
    /// # Panics
    ///
    /// Panics if `kind` is empty.
    ///
    /// ```
    /// # #[cfg(not(feature = "axum"))]
    /// # fn main() {}
    /// # #[cfg(feature = "axum")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, body::Body, http::{Request, StatusCode}, routing::put};
    /// use tower::ServiceExt;
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let by_id = LockLayer::by_path_param(locks.clone(), "id").no_wait();
    /// let app: Router = Router::new()
    ///     .route("/orders/{id}", put(async || ()).route_layer(by_id.clone().kind("order")))
    ///     .route("/customers/{id}", put(async || ()).route_layer(by_id.kind("customer")));
    ///
    /// let nightly_job = locks.acquire(LockKey::from_parts(["order", "7"])).await?;
    /// let put = |path: &str| Request::put(path).body(Body::empty());
    /// assert_eq!(app.clone().oneshot(put("/orders/7")?).await?.status(), StatusCode::CONFLICT);
    /// assert_eq!(app.oneshot(put("/customers/7")?).await?.status(), StatusCode::OK);
    /// # drop(nightly_job);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The key of a path has no kind, so this does not compile:
    ///
    /// ```compile_fail,E0599
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory()).kind("order");
    /// ```
    #[track_caller]
    pub fn kind(mut self, kind: impl Into<Cow<'static, str>>) -> Self {
        let kind = kind.into();
        assert!(!kind.is_empty(), "`LockLayer`: invalid `kind`: it is empty");
        let keys = self.keys.extractor().clone().with_kind(kind);
        self.keys = Arc::new(Keyed::of(keys));
        self
    }
}

impl LockLayer<()> {
    /// Creates a layer that locks what a value in the extensions of the request names.
    ///
    /// A layer outside of this one inserts the value, such as the tenant or the user. A request without it is a
    /// mistake of the program: it is rejected with 500 `lock-misconfigured`, and the layer logs the mistake once, as
    /// an error.
    ///
    /// ```
    /// use tower_lock::{LockKey, LockKeys, LockLayer, LockManager, LockTarget};
    ///
    /// #[derive(Clone)]
    /// struct Tenant(String);
    ///
    /// impl LockTarget for Tenant {
    ///     fn lock_keys(&self) -> LockKeys {
    ///         LockKey::from_parts(["tenant", &self.0]).into()
    ///     }
    /// }
    ///
    /// let layer = LockLayer::by_extension::<Tenant>(LockManager::in_memory());
    /// # drop(layer);
    /// ```
    pub fn by_extension<T>(locks: LockManager) -> LockLayer<impl KeyExtractor>
    where
        T: LockTarget + Clone + Send + Sync + 'static,
    {
        LockLayer::by_fn(locks, of_extension::<T>)
    }

    /// Creates a layer that locks what a closure reads from the head of the request.
    ///
    /// The closure returns a [`LockKey`](crate::LockKey), [`LockKeys`](crate::LockKeys), or an `Option` or `Result` of
    /// one. `None` passes the request without a lock. [`InvalidKey`](crate::keys::InvalidKey) is rejected with 400. Values
    /// that come from the request belong into [`LockKey::from_parts`](crate::LockKey::from_parts). A request over HTTP/2
    /// lacks some headers of HTTP/1.1: [`by_header`](LockLayer::by_header) lists them.
    ///
    /// ```
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    /// use tower_lock::keys::InvalidKey;
    ///
    /// let locks = LockManager::in_memory();
    /// let by_host = LockLayer::by_fn(locks.clone(), |request| {
    ///     let missing = || InvalidKey::Missing("host".into());
    ///     // Over HTTP/2, only the target has the host. `LockLayer::by_host` also unifies spellings.
    ///     let host = match request.uri.authority() {
    ///         Some(authority) => authority.as_str().as_bytes(),
    ///         None => request.headers.get("host").ok_or_else(missing)?.as_bytes(),
    ///     };
    ///     Ok(LockKey::from_parts([b"host", host]))
    /// });
    ///
    /// let by_account = LockLayer::by_fn(locks, |request| {
    ///     let missing = || InvalidKey::Missing("header `x-account`".into());
    ///     let account = request.headers.get("x-account").ok_or_else(missing)?;
    ///     Ok(LockKey::from_parts([b"account", account.as_bytes()]))
    /// });
    /// # drop((by_host, by_account));
    /// ```
    pub fn by_fn<F, R>(locks: LockManager, keys: F) -> LockLayer<ByFn<F>>
    where
        F: Fn(&Parts) -> R,
        R: IntoLockKeys,
    {
        LockLayer::new(locks, ByFn::new(keys))
    }
}
