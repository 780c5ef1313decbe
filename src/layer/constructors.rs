//! The constructors of [`LockLayer`], one for each place that keys come from.

use std::borrow::Cow;

use http::HeaderName;

#[cfg(feature = "axum")]
use super::keys::ByPathParam;
use super::keys::{ByExtension, ByHeader, ByPath, ByQuery, LockTarget};
use super::layer::LockLayer;
use crate::LockManager;

impl LockLayer<ByPath> {
    /// One lock per path, as the client asked for it: inside a nested axum router it is the
    /// original path. The key is `LockKey::from_parts([path])`.
    ///
    /// The path is normalised by RFC 3986 §6.2.2: `%41` is `A`, an empty path is `/`. Case, a trailing
    /// slash, and `%2F` against `/` make different locks. Query and host are no part of it. Reserved
    /// characters are not decoded: if clients spell `@` also `%40`, lock by the decoded value, as
    /// `by_path_param` does. A `%` without two hex digits is answered with 400, and so are the
    /// segments `.` and `..`, of which nobody knows what the handler makes of them.
    pub fn by_path(locks: LockManager) -> Self {
        Self::new(locks, ByPath)
    }
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl LockLayer<ByPathParam> {
    /// One lock per value of a parameter of the axum route, decoded. The key is
    /// `LockKey::from_parts([name, value])`: routes that name a parameter alike share locks, also
    /// `Locked` and jobs that use the same two parts.
    ///
    /// A route without that parameter is answered with 400, and so is every request if the layer is
    /// not inside the `Router`: around it there are no parameters yet.
    ///
    /// # Panics
    ///
    /// If `name` is empty or has braces.
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
    pub fn by_path_param(locks: LockManager, name: impl Into<Cow<'static, str>>) -> Self {
        let name = name.into();
        assert!(
            !name.is_empty() && !name.contains(['{', '}']),
            "`LockLayer`: invalid `by_path_param`: name the parameter as in `Path`, without braces"
        );
        Self::new(locks, ByPathParam::new(name))
    }
}

impl LockLayer<ByHeader> {
    /// One lock per value of a header. The key is `LockKey::from_parts([name, value])`, the name
    /// in lower case.
    ///
    /// A request without the header, or with two of them, is answered with 400.
    ///
    /// # Panics
    ///
    /// If `name` is no header name.
    pub fn by_header(locks: LockManager, name: impl TryInto<HeaderName>) -> Self {
        let Ok(name) = name.try_into() else {
            panic!("`LockLayer`: invalid `by_header`: not a header name");
        };
        Self::new(locks, ByHeader::new(name))
    }
}

impl LockLayer<ByQuery> {
    /// One lock per value of a query parameter, decoded as a form. The key is
    /// `LockKey::from_parts([name, value])`.
    ///
    /// A request without the parameter, with two of them, or with a value that is not UTF-8 is
    /// answered with 400.
    ///
    /// # Panics
    ///
    /// If `name` is empty.
    pub fn by_query(locks: LockManager, name: impl Into<Cow<'static, str>>) -> Self {
        let name = name.into();
        assert!(
            !name.is_empty(),
            "`LockLayer`: invalid `by_query`: the name of the parameter is empty"
        );
        Self::new(locks, ByQuery::new(name))
    }
}

impl LockLayer<()> {
    /// The locks that a value in the request's extensions asks for: a tenant or a user that an
    /// outer layer found out.
    ///
    /// A request without the extension is answered with 400.
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
    pub fn by_extension<T>(locks: LockManager) -> LockLayer<ByExtension<T>>
    where
        T: LockTarget + Clone + Send + Sync + 'static,
    {
        LockLayer::new(locks, ByExtension::new())
    }
}
