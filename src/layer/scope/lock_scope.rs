//! The end of a scope in the extensions of the request, and what both ends share.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use http::Extensions;

use crate::layer::config::Options;
#[cfg(feature = "axum")]
use crate::layer::read_body::ReadBody;
use crate::layer::request_locks::RequestLocks;
use crate::lock::Heir;
use crate::mutex::Mutex;
use crate::{Held, LockGuard, LockManager, Owner};

/// The scope of a request, which keeps guards until the response is complete.
///
/// A [`LockScopeLayer`](crate::LockScopeLayer) and every [`LockLayer`](crate::LockLayer) open a scope. With the feature
/// `axum`, this type is an extractor. Without a scope it rejects the request with 500, and `Option<LockScope>` is `None`.
///
/// A handler acquires its locks with [`acquire`](Self::acquire). [`keep`](Self::keep) is for guards that it has already:
///
/// ```
/// # #[cfg(not(feature = "axum"))]
/// # fn main() {}
/// # #[cfg(feature = "axum")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, extract::State, http::{Request, StatusCode}, routing::post};
/// use tower::ServiceExt;
/// use tower_lock::{Error, LockGuard, LockManager, LockScope, LockScopeLayer};
///
/// /// Also called by a job. It does not re-enter what the request holds.
/// async fn open_month(locks: &LockManager) -> Result<LockGuard, Error> {
///     locks.acquire("month:2026-01").no_wait().await
/// }
///
/// async fn close_month(
///     State(locks): State<LockManager>,
///     scope: LockScope,
/// ) -> Result<&'static str, Error> {
///     scope.keep(open_month(&locks).await?);
///     Ok("closed")
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
#[derive(Clone)]
pub struct LockScope {
    pub(super) shared: Arc<Shared>,
}

/// What the two ends of a scope share.
#[derive(Default)]
pub(super) struct Shared {
    /// `None` only while no request uses it.
    pub(super) settings: Option<Arc<Options>>,
    pub(super) state: Mutex<ScopeState>,
    #[cfg(feature = "axum")]
    pub(super) unread: Mutex<ReadBody<axum::body::Body>>,
}

#[derive(Default)]
pub(super) struct ScopeState {
    pub(super) is_closed: bool,
    /// Registered guards that the watch has not seen yet.
    pub(super) new: Vec<Held>,
    pub(super) kept: Vec<LockGuard>,
    /// The owners of the request that the scope knows, one per manager.
    pub(super) owners: Vec<Owner>,
    /// Set between two polls of the request.
    pub(super) waker: Option<Waker>,
}

impl LockScope {
    /// Returns the innermost scope of the request, or `None` without a layer that opens one.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        let scope = RequestLocks::scope(extensions)?;
        for owner in RequestLocks::owners(extensions) {
            scope.add_owner(owner);
        }
        Some(scope)
    }

    /// Adds an owner of the request, with which the handler acquires.
    pub(crate) fn add_owner(&self, owner: Owner) {
        let owners = &mut self.shared.state.lock().owners;
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    /// Returns the owner that the scope knows for a manager.
    pub(in crate::layer) fn known_owner(&self, locks: &LockManager) -> Option<Owner> {
        let state = self.shared.state.lock();
        let mut owners = state.owners.iter().copied();
        owners.find(|owner| locks.has_created(*owner))
    }

    /// Returns the owner of the request for a manager. The first call may create it.
    pub(super) fn owner(&self, locks: &LockManager) -> Owner {
        let owners = &mut self.shared.state.lock().owners;
        let known = owners.iter().find(|owner| locks.has_created(**owner));
        known.copied().unwrap_or_else(|| {
            let owner = locks.new_owner();
            owners.push(owner);
            owner
        })
    }

    /// Keeps the lock until the response is complete. If the lock is lost before, the handler is aborted as
    /// [`on_lost`](crate::LockScopeLayer::on_lost) defines.
    ///
    /// Releases the lock at once if the response is already complete.
    pub fn keep(&self, mut guard: LockGuard) {
        guard.set_heir(None);
        let held = guard.held();
        self.register(held, Some(guard));
    }

    /// Becomes the heir of a guard that goes to the handler, and watches it.
    #[cfg(feature = "axum")]
    pub(crate) fn lend(&self, guard: &mut LockGuard) {
        guard.set_heir(Some(Arc::clone(&self.shared) as Arc<dyn Heir>));
        self.register(guard.held(), None);
    }

    pub(crate) fn settings(&self) -> Option<&Options> {
        self.shared.settings.as_deref()
    }

    fn register(&self, held: Held, guard: Option<LockGuard>) {
        let mut state = self.shared.state.lock();
        let waker = if state.is_closed {
            None
        } else {
            state.new.push(held);
            state.kept.extend(guard);
            state.waker.take()
        };
        // A guard of a closed scope is still here, and is dropped after the mutex is free.
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Heir for Shared {
    fn inherit(&self, guard: LockGuard) {
        let mut state = self.state.lock();
        let late = if state.is_closed {
            Some(guard)
        } else {
            state.kept.push(guard);
            None
        };
        drop(state);
        drop(late);
    }
}

impl fmt::Debug for LockScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockScope")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
