//! What a program configures for a scope.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use tower::{BoxError, Layer};

use super::service::LockScopeService;
use crate::LockRejection;
use crate::layer::config::{OnLost, Options};

/// Keeps the locks of [`Locked`](crate::Locked) until the response is complete, and carries their settings.
///
/// Every [`LockLayer`](crate::LockLayer) opens a scope as well. Use this layer around handlers that lock only
/// with `Locked`, or acquire locks of their own.
///
/// In a scope:
///
/// - The lock of a guard that the handler drops is held until the response is complete, streaming bodies
///   included. A closure that does not name its guard stays locked, and a streaming body needs no guard.
/// - When the client disconnects or the handler panics, the handler is dropped first, and then its locks are
///   released.
/// - If a lock is lost, the handler is aborted and the client gets 500 `lock-lost`. A streaming body ends
///   with an error.
/// - [`LockGuard::release`](crate::LockGuard::release) releases early.
/// - A guard that the handler moves into a task is held until the task drops it.
/// - A handler acquires further locks with [`LockScope::acquire`](crate::LockScope::acquire), as the owner of the request.
///   [`LockScope::keep`](crate::LockScope::keep) hands over a guard of its own.
///
/// The settings apply to each `Locked` and `LockScope::acquire` in the scope. Of several scopes, all settings of the innermost apply,
/// defaults included. Only [`status`](Self::status) and [`on_reject`](Self::on_reject) are inherited: a scope around a
/// router sets them for all layers and scopes inside that do not set their own.
///
/// ```
/// # #[cfg(not(feature = "axum"))]
/// # fn main() {}
/// # #[cfg(feature = "axum")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use axum::{Router, body::Body, extract::Path, http::{Request, StatusCode}, routing::put};
/// use tower::ServiceExt;
/// use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
///
/// #[derive(serde::Deserialize)]
/// struct OrderId(String);
///
/// impl LockTarget for OrderId {
///     fn lock_keys(&self) -> LockKeys {
///         LockKey::from_parts(["order", &self.0]).into()
///     }
/// }
///
/// let locks = LockManager::in_memory();
/// let app = Router::new()
///     // The scope keeps the lock, although the closure drops its guard at once.
///     .route("/orders/{id}", put(|Locked(id, _guard): Locked<Path<OrderId>>| async move {
///         format!("updated {}", id.0.0)
///     }))
///     .layer(LockScopeLayer::new().wait(Duration::from_millis(10)))
///     .with_state(locks.clone());
///
/// let request = || Request::put("/orders/42").body(Body::empty());
/// assert_eq!(app.clone().oneshot(request()?).await?.status(), StatusCode::OK);
///
/// let job = locks.acquire(LockKey::from_parts(["order", "42"])).await?;
/// assert_eq!(app.oneshot(request()?).await?.status(), StatusCode::CONFLICT);
/// # drop(job);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct LockScopeLayer {
    settings: Options,
}

impl LockScopeLayer {
    /// Creates a layer with the manager's wait, renewed leases, a longest hold of 5 minutes, status 409 and
    /// [`OnLost::Abort`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long `Locked` waits before the request is rejected with 409. Defaults to the manager's wait,
    /// 5 s. Zero is [`no_wait`](Self::no_wait). [`LockLayer::wait`](crate::LockLayer::wait) shows what a timeout outside
    /// of the scope does. A timeout inside of it includes the wait as well.
    ///
    /// # Panics
    ///
    /// Panics if `wait` is longer than 366 days.
    #[track_caller]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.set_wait(wait);
        self
    }

    /// Sets the name under which metrics and events report the acquires of `Locked`, like
    /// [`LockLayer::name`](crate::LockLayer::name). Defaults to none. It is no part of the key.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.settings.name = Some(name.as_ref().into());
        self
    }

    /// Makes `Locked` attempt once: a request for a busy resource is rejected at once.
    pub fn no_wait(mut self) -> Self {
        self.settings.wait = Some(Duration::ZERO);
        self
    }

    /// Sets a fixed lease that is not renewed. Defaults to a lease that the watchdog renews while the lock is
    /// held.
    ///
    /// # Panics
    ///
    /// Panics if `lease` is not between 10 ms and 366 days.
    #[track_caller]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.set_lease(lease);
        self
    }

    /// Sets the longest hold of a `Locked`, the response body included, after which the lock is lost. Defaults
    /// to 5 minutes.
    ///
    /// Guards that are kept with [`LockScope::keep`](crate::LockScope::keep) have the limit of their own
    /// acquire.
    ///
    /// # Panics
    ///
    /// Panics if `max_hold` is not between 10 ms and 366 days.
    #[track_caller]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.set_max_hold(max_hold);
        self
    }

    /// Sets the status when the resource is busy. Defaults to that of the layer or scope around, or to 409 Conflict.
    ///
    /// The setting also applies to an [`Error`](crate::Error) that the handler returns, and to layers inside without a
    /// status of their own.
    ///
    /// # Panics
    ///
    /// Panics if `status` is not a client error (4xx).
    #[track_caller]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.settings.set_busy_status(status);
        self
    }

    /// Sets what happens to a request that loses a lock. Defaults to [`OnLost::Abort`].
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.settings.on_lost = on_lost;
        self
    }

    /// Sets a function that creates the response to a request that did not get its lock, or lost it before
    /// the head. Defaults to that of the layer or scope around, or to problem details. [`LockLayer::on_reject`](crate::LockLayer::on_reject) states what the
    /// function may omit.
    ///
    /// The setting also applies to an [`Error`](crate::Error) that the handler returns, and to layers inside without an
    /// `on_reject` of their own.
    pub fn on_reject<F, B>(mut self, on_reject: F) -> Self
    where
        F: Fn(LockRejection) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        self.settings.set_on_reject(on_reject);
        self
    }
}

impl<S> Layer<S> for LockScopeLayer {
    type Service = LockScopeService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        LockScopeService::new(inner, Arc::new(self.settings.clone()))
    }
}
