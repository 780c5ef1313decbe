//! An acquire of a handler, whose lock the scope keeps.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::lock_scope::LockScope;
use crate::{Acquire, Error, Held, LockKeys, LockManager};

impl LockScope {
    /// Creates a request for a lock that the scope keeps until the response is complete.
    ///
    /// The owner is that of the request, so the acquire re-enters what its layers, its `Locked` and its earlier acquires
    /// hold. The settings of the scope are the defaults. Awaiting it returns [`Held`]. After the response, the lock is
    /// released at once, and [`Held::is_held`] is `false`.
    ///
    /// An owner belongs to one manager. Two managers over one backend exclude each other, also in one request: an acquire
    /// of a key that the request holds through the other one is rejected at the end of its wait.
    ///
    /// ```
    /// # #[cfg(not(feature = "axum"))]
    /// # fn main() {}
    /// # #[cfg(feature = "axum")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, body::Body, extract::State, http::{Request, StatusCode}, routing::post};
    /// use tower::ServiceExt;
    /// use tower_lock::{Error, LockManager, LockScope, LockScopeLayer};
    ///
    /// async fn close_month(
    ///     State(locks): State<LockManager>,
    ///     scope: LockScope,
    /// ) -> Result<String, Error> {
    ///     // The key is known only after a look-up.
    ///     let held = scope.acquire(&locks, "month:2026-01").no_wait().await?;
    ///     Ok(format!("closed with token {}", held.fencing_token()))
    /// }
    ///
    /// let locks = LockManager::in_memory();
    /// let app = Router::new()
    ///     .route("/close", post(close_month))
    ///     .layer(LockScopeLayer::new())
    ///     .with_state(locks.clone());
    /// let request = || Request::post("/close").body(Body::empty());
    /// assert_eq!(app.clone().oneshot(request()?).await?.status(), StatusCode::OK);
    ///
    /// let job = locks.acquire("month:2026-01").await?;
    /// assert_eq!(app.oneshot(request()?).await?.status(), StatusCode::CONFLICT);
    /// # drop(job);
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self, locks: &LockManager, keys: impl Into<LockKeys>) -> ScopeAcquire {
        let (keys, owner) = (keys.into(), self.owner(locks));
        let acquire = match self.settings() {
            Some(settings) => settings.acquire_in_scope(locks, keys),
            None => locks.acquire(keys),
        };
        let (scope, acquire) = (self.clone(), acquire.owner(owner));
        ScopeAcquire { scope, acquire }
    }
}

/// A request for a lock that a scope keeps. [`LockScope::acquire`] creates it.
///
/// Its settings and errors are those of [`Acquire`].
///
/// # Cancel safety
///
/// If dropped, the acquire leaves the queue at once, and nothing remains.
#[derive(Debug)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct ScopeAcquire {
    scope: LockScope,
    acquire: Acquire,
}

impl ScopeAcquire {
    /// Sets the longest wait, as [`Acquire::wait`]. Defaults to that of the scope.
    pub fn wait(self, wait: Duration) -> Self {
        self.map(|acquire| acquire.wait(wait))
    }

    /// Makes one attempt, as [`Acquire::no_wait`].
    pub fn no_wait(self) -> Self {
        self.map(Acquire::no_wait)
    }

    /// Sets a fixed lease that is not renewed, as [`Acquire::lease`]. Defaults to that of the scope.
    pub fn lease(self, lease: Duration) -> Self {
        self.map(|acquire| acquire.lease(lease))
    }

    /// Sets the longest hold, as [`Acquire::max_hold`]. Defaults to that of the scope, 5 minutes.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.map(|acquire| acquire.max_hold(max_hold))
    }

    /// Asks for a shared lock, as [`Acquire::shared`].
    pub fn shared(self) -> Self {
        self.map(Acquire::shared)
    }

    /// Asks for a permit, as [`Acquire::permits`].
    pub fn permits(self, limit: u32) -> Self {
        self.map(|acquire| acquire.permits(limit))
    }

    fn map(self, set: impl FnOnce(Acquire) -> Acquire) -> Self {
        let Self { scope, acquire } = self;
        let acquire = set(acquire);
        Self { scope, acquire }
    }
}

impl IntoFuture for ScopeAcquire {
    type Output = Result<Held, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { scope, acquire } = self;
        let acquire = acquire.into_future();
        Box::pin(async move {
            let guard = acquire.await?;
            let held = guard.held();
            scope.keep(guard);
            Ok(held)
        })
    }
}
