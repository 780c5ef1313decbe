//! The settings that choose the requests to lock, and how many of them run at a time.

use std::sync::Arc;

use http::request::Parts;

use super::layer::LockLayer;
use super::options::{Reads, assert_valid};
use crate::lock::valid_permits;

impl<K> LockLayer<K> {
    /// Locks requests with any method exclusively. By default, those with a safe method (RFC 9110 §9.2.1) pass without a
    /// lock: GET, HEAD, OPTIONS and TRACE.
    ///
    /// Set it for a GET whose handler writes, must not run beside a write, or takes [`Held`](crate::Held) or
    /// [`Owner`](crate::Owner). An OPTIONS of a browser then waits too, unless a CORS layer outside answers it. Of this
    /// setting and [`shared_reads`](Self::shared_reads), the last one counts.
    ///
    /// A GET that asks for an upgrade, as a WebSocket does, is locked also by default. Over HTTP/2, a WebSocket is a
    /// `CONNECT`, which is not safe. Both are locked until their head.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::convert::Infallible;
    ///
    /// use http::{Request, Response, StatusCode};
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_lock::{LockKey, LockLayer, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let by_path = LockLayer::by_path(locks.clone()).no_wait();
    /// let export = service_fn(async |_: Request<String>| {
    ///     Ok::<_, Infallible>(Response::new(String::new()))
    /// });
    ///
    /// let _job = locks.acquire(LockKey::from_path("/export")).await?;
    /// let get = || Request::get("/export").body(String::new());
    /// let passed = by_path.clone().layer(export).oneshot(get()?).await?;
    /// assert_eq!(passed.status(), StatusCode::OK);
    /// let locked = by_path.all_methods().layer(export).oneshot(get()?).await?;
    /// assert_eq!(locked.status(), StatusCode::CONFLICT);
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_methods(mut self) -> Self {
        self.options.reads = Reads::Exclusive;
        self
    }

    /// Lets the requests GET and HEAD share their locks, so that they exclude writes, and not each other. Passes OPTIONS
    /// and TRACE without a lock. All other methods lock exclusively. By default, all four pass.
    ///
    /// While a write waits, no further read joins. A GET that asks for an upgrade locks exclusively. Of this setting and
    /// [`all_methods`](Self::all_methods), the last one counts. If the backend has no
    /// [shared locks](crate::manager::Acquire::shared), these requests are rejected with 500 `lock-option-invalid`.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory()).shared_reads();
    /// # drop(layer);
    /// ```
    pub fn shared_reads(mut self) -> Self {
        self.options.reads = Reads::Shared;
        self
    }

    /// Lets at most `limit` requests of one key run at a time, over all processes, instead of one. From 1 to 10,000.
    /// Requests with any method count, GET included.
    ///
    /// A request above the limit waits for its [permit](crate::manager::Acquire::permits), and is rejected with 429
    /// `permits-exhausted` after its wait. [`status`](Self::status) sets another status. Requests with and without
    /// permits of one key exclude each other. This setting replaces [`shared_reads`](Self::shared_reads). If the backend has
    /// no permits, requests are rejected with 500 `lock-option-invalid`.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is out of bounds.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_header(LockManager::in_memory(), "x-tenant").permits(10);
    /// # drop(layer);
    /// ```
    #[track_caller]
    pub fn permits(mut self, limit: u32) -> Self {
        assert_valid(valid_permits(limit).map(drop));
        self.options.permits = Some(Arc::new(move |_: &Parts| limit));
        self
    }

    /// Sets the limit of [`permits`](Self::permits) for each request. A request whose limit is out of bounds is rejected
    /// with 500 `lock-option-invalid`.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_header(LockManager::in_memory(), "x-tenant")
    ///     .permits_with(|request| if request.headers.contains_key("x-paid") { 100 } else { 10 });
    /// # drop(layer);
    /// ```
    pub fn permits_with(
        mut self,
        limit_of: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.options.permits = Some(Arc::new(limit_of));
        self
    }

    /// Passes requests without a lock if `skip` returns `true`, in addition to those with a safe method. By default, each
    /// other request that has a key is locked.
    ///
    /// `skip` runs before the key is extracted. A second call replaces the first.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory())
    ///     .skip(|request| request.uri.path() == "/metrics/push");
    /// # drop(layer);
    /// ```
    pub fn skip(mut self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.options.skip = Some(Arc::new(skip));
        self
    }
}
