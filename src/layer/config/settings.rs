//! The settings of the layer.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use tower::BoxError;

use super::layer::LockLayer;
use super::options::OnLost;
use super::unlocked::OnUnavailable;
use crate::layer::rejection::LockRejection;

impl<K> LockLayer<K> {
    /// Sets the name under which metrics and events report the locks of this layer. Defaults to none.
    ///
    /// The name is no part of the key: two layers with different names and the same key exclude each other.
    ///
    /// Metrics have the name as the label `layer`, and events as the field `lock.layer`. Each name creates about 120 time
    /// series. A manager distinguishes 32 names, and reports further ones as `other`.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory()).name("orders");
    /// # drop(layer);
    /// ```
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        // Registers its series before the first request.
        self.locks.tally().number(name);
        self.options.name = Some(name.into());
        self
    }

    /// Sets how long a request waits for its lock before it is rejected with 409. Defaults to the manager's wait, 5 s.
    /// Zero is [`no_wait`](Self::no_wait).
    ///
    /// A timeout outside of the layer, such as `TimeoutLayer` of tower-http, includes the wait. One inside begins after it.
    /// With a wait of 5 s:
    ///
    /// | timeout | busy for longer than the wait | busy for 4 s, and the handler takes too long |
    /// |---|---|---|
    /// | 3 s, outside | timeout after 3 s, without `Retry-After` | timeout after 3 s, before the handler runs |
    /// | 10 s, outside | 409 after 5 s | timeout after 10 s: the handler had 6 s |
    /// | 10 s, inside | 409 after 5 s | timeout after 14 s: the handler had 10 s |
    ///
    /// A request that a timeout outside ends while it waits is counted with the outcome `cancelled`, and logged at debug.
    ///
    /// # Panics
    ///
    /// Panics if `wait` is longer than 366 days.
    #[track_caller]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.set_wait(wait);
        self
    }

    /// Makes each request attempt once: a request for a busy resource is rejected at once.
    pub fn no_wait(mut self) -> Self {
        self.options.wait = Some(Duration::ZERO);
        self
    }

    /// Sets a fixed lease that is not renewed, after which the lock is lost. Defaults to a lease that the watchdog renews
    /// for as long as the request takes, up to [`max_hold`](Self::max_hold).
    ///
    /// # Panics
    ///
    /// Panics if `lease` is not between 10 ms and 366 days.
    #[track_caller]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease);
        self
    }

    /// Sets the longest hold of a request, the response body included, after which the lock is lost. Defaults to
    /// 5 minutes. Has no effect on a layer that re-enters the lock of another.
    ///
    /// Over HTTP/2, the server does not poll a body that the client does not read. Such a body is dropped when the
    /// client reads on or disconnects. The lock is released before.
    ///
    /// # Panics
    ///
    /// Panics if `max_hold` is not between 10 ms and 366 days.
    #[track_caller]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.set_max_hold(max_hold);
        self
    }

    /// Sets for how long the lease of a request's lock stays in this process for the next request with its key. Defaults to
    /// the manager's [`keep_released`](crate::LockManagerBuilder::keep_released), which is off by default. Zero keeps none.
    ///
    /// # Panics
    ///
    /// Panics if `time` is longer than 100 ms.
    #[track_caller]
    pub fn keep_released(mut self, time: Duration) -> Self {
        self.options.set_keep_released(time);
        self
    }

    /// Sets the status when the resource is busy. Defaults to that of the layer or scope around, or to 409 Conflict.
    /// Clients that know WebDAV expect 423 Locked.
    ///
    /// # Panics
    ///
    /// Panics if `status` is not a client error (4xx). After a 5xx, load balancers take an instance out of service for
    /// one busy resource. Any other status looks like success.
    #[track_caller]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.options.set_busy_status(status);
        self
    }

    /// Releases the lock at the head of the response, even if its body streams. By default, the lock is released
    /// when the response is complete.
    pub fn release_at_head(mut self) -> Self {
        self.options.release_at_head = true;
        self
    }

    /// Sets what happens to a request that loses its lock. Defaults to [`OnLost::Abort`].
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager, OnLost};
    ///
    /// // The storage checks the fencing token of each write, so a handler may finish under a lost lock.
    /// let layer = LockLayer::by_path(LockManager::in_memory()).on_lost(OnLost::Continue);
    /// # drop(layer);
    /// ```
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.options.on_lost = on_lost;
        self
    }

    /// Passes each request without a lock that would be rejected: for the first week in production. Off by default.
    ///
    /// The layer makes one attempt without waiting. If it fails for any reason, the request runs at once without
    /// a lock, and carries the extension [`Unlocked`](crate::service::Unlocked). The rejection that it would have received
    /// is counted as `tower_lock_unlocked_total` and logged as an event of level `INFO`. With a
    /// wait, some of these requests would be granted their lock. A handler whose lock is lost is not aborted,
    /// even with [`OnLost::Abort`].
    ///
    /// Requests also pass if the program is wrong, such as a route without the parameter of
    /// [`by_path_param`](LockLayer::by_path_param): the layer must not break what worked before. It logs the mistake
    /// once as an error, and counts each request. Without this setting, they are answered with 500
    /// `lock-misconfigured`.
    ///
    /// A request without a lock has no [`Held`](crate::Held): let the handler extract `Option<Held>`.
    ///
    /// ```
    /// # #[cfg(not(feature = "axum"))]
    /// # fn main() {}
    /// # #[cfg(feature = "axum")]
    /// # fn main() {
    /// use axum::routing::put;
    /// use axum::{Extension, Router};
    /// use tower_lock::{Held, LockLayer, LockManager};
    /// use tower_lock::service::Unlocked;
    ///
    /// async fn write(held: Option<Held>, unlocked: Option<Extension<Unlocked>>) -> String {
    ///     match (held, unlocked) {
    ///         (Some(held), _) => format!("written with token {}", held.fencing_token()),
    ///         (None, Some(Extension(unlocked))) => format!("not locked: {}", unlocked.error()),
    ///         (None, None) => "no layer locks this route".to_owned(),
    ///     }
    /// }
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory()).observe_only();
    /// let app: Router = Router::new().route("/orders/{id}", put(write)).layer(layer);
    /// # drop(app);
    /// # }
    /// ```
    pub fn observe_only(mut self) -> Self {
        self.options.passing.observe_only = true;
        self
    }

    /// Sets the treatment of a request whose lock cannot be acquired because the backend is unavailable.
    /// Defaults to [`OnUnavailable::Reject`].
    ///
    /// Applies to errors of kind [`Unavailable`](crate::ErrorKind::Unavailable) only: the backend did not reply
    /// within the wait. A rejected login, a misconfigured program or a busy key is rejected in any case.
    ///
    /// **With [`OnUnavailable::Pass`], requests with the same key run concurrently during an outage.** Choose it
    /// only if the storage itself rejects conflicting writes. Each request still spends its whole wait first.
    /// A request that passes carries the extension [`Unlocked`](crate::service::Unlocked), its response the header
    /// `tower-lock: unlocked`. It is counted as `tower_lock_unlocked_total`; the first one of an outage is
    /// logged as a warning, at most one in 10 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_lock::{LockLayer, LockManager, OnUnavailable};
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory())
    ///     .wait(Duration::from_millis(500))
    ///     .on_unavailable(OnUnavailable::Pass);
    /// # drop(layer);
    /// ```
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.options.passing.on_unavailable = on_unavailable;
        self
    }

    /// Sets a function that creates the response to a request that did not get its lock, or lost it before the head.
    /// Defaults to that of the layer or scope around, or to problem details. A
    /// [`LockScopeLayer`](crate::LockScopeLayer) around the router thus sets it for all layers.
    ///
    /// The body can be a `String`, axum's body, or any other body of [`Bytes`]. The layer completes the response:
    ///
    /// - A status below 400, such as the 200 of a new response, becomes [`LockRejection::status`]. Each other one is kept.
    /// - `Retry-After` is that of the rejection, and `Cache-Control` is `no-store`, unless the function sets them.
    /// - The rejection is in the extensions.
    ///
    /// [`guide::http`](crate::guide::http#errors-in-a-format-of-your-own) shows one function for all layers, scopes and
    /// errors of handlers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::convert::Infallible;
    ///
    /// use http::header::{CONTENT_TYPE, RETRY_AFTER};
    /// use http::{HeaderValue, Request, Response, StatusCode};
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_lock::{LockKey, LockLayer, LockManager, LockRejection};
    ///
    /// fn in_company_format(rejection: LockRejection) -> Response<String> {
    ///     let is_temporary = rejection.retry_after().is_some();
    ///     let body = serde_json::json!({ "error": "lock", "temporary": is_temporary });
    ///     let mut response = Response::new(body.to_string());
    ///     let json = HeaderValue::from_static("application/json");
    ///     response.headers_mut().insert(CONTENT_TYPE, json);
    ///     response
    /// }
    ///
    /// let locks = LockManager::in_memory();
    /// let layer = LockLayer::by_path(locks.clone()).no_wait().on_reject(in_company_format);
    /// let service = layer.layer(service_fn(async |_: Request<String>| {
    ///     Ok::<_, Infallible>(Response::new(String::new()))
    /// }));
    /// let _job = locks.acquire(LockKey::from_path("/orders/42")).await?;
    /// let response = service.oneshot(Request::put("/orders/42").body(String::new())?).await?;
    /// assert_eq!(response.status(), StatusCode::CONFLICT);
    /// assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    /// assert!(response.headers().contains_key(RETRY_AFTER));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_reject<F, B>(mut self, on_reject: F) -> Self
    where
        F: Fn(LockRejection) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        self.options.set_on_reject(on_reject);
        self
    }
}
