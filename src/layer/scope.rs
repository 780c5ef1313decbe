//! The scope of a request: keeps locks until the response is complete, and watches them.
//!
//! A [`LockLayer`](crate::LockLayer) and a [`LockScopeLayer`](crate::LockScopeLayer) open one scope for each request. The
//! scope has two ends that share one [`Shared`] state:
//!
//! - [`LockScope`], in the extensions of the request. `Locked` and the handler register guards there.
//! - [`Watch`], in the response future and then in the response body. It polls the loss futures of all
//!   registered guards, and closes the scope when it is dropped.
//!
//! # The holder of a lock
//!
//! Each hold has exactly one guard at any time, so the hold count is what it is without a scope. A guard of
//! `Locked` is *lent*: it is with the handler, and the scope is its heir and watches it through
//! [`Held`]. A guard is *kept* if the scope has it.
//!
//! | guard | event | then | the lock |
//! |---|---|---|---|
//! | none | `Locked` acquires, the scope is open | lent | held |
//! | none | `Locked` acquires, the scope is closed | the handler's alone | released at its drop |
//! | lent | dropped, the scope is open | kept | held |
//! | lent | dropped, the scope is closed | gone | released |
//! | lent | `release().await` | gone | released at once |
//! | lent, or the handler's alone | `keep(guard)`, the scope is open | kept | held |
//! | lent, or the handler's alone | `keep(guard)`, the scope is closed | gone | released |
//! | lent | the scope closes | the handler's alone | released at its drop |
//! | kept | the scope closes | gone | released |
//! | lent or kept | lost | the handler or the body is dropped, the scope closes | lost |
//!
//! The mutex of the state orders a drop against the close. A guard that is dropped first is kept and released
//! by the close; a guard that is dropped afterwards releases itself. Guards are dropped only while the mutex
//! is free, because a release runs the engine.
//!
//! # When the scope closes
//!
//! The handler's future, or the body, is always dropped before the scope closes, so its guards are kept first
//! and released by the close.
//!
//! | end of the request | the scope closes |
//! |---|---|
//! | response without a body, or with a body in memory | at the head |
//! | `HEAD`, an upgrade, `release_at_head` | at the head; guards that the body has are then its own |
//! | streaming body | when it ends, fails or is dropped |
//! | handler dropped at any await: client disconnect, timeout | at the drop of the response future |
//! | handler panics | at the drop of the response future, by the code that catches the panic |
//! | a lock is lost | after the handler or the body is dropped; response 500, or the body fails |
//! | error of the inner service | before the error is returned |
//!
//! # Several scopes
//!
//! The innermost scope replaces the outer one in the extensions, so `Locked` registers there, and its settings
//! apply. The inner response completes first, so the inner scope closes first. This also holds for a scope in
//! a `LockLayer`, and for a `LockLayer` in a scope: the layer's own guard is beside its scope, and is
//! released after it. Guards that were lent by an outer scope, in a middleware, stay with the outer scope.
//!
//! A guard that the handler moves into a task stays lent. Its loss aborts the request while the scope is open;
//! after that it is the task's alone.
//!
//! # Wakers
//!
//! A guard that is registered during a poll of the handler is found at the end of that poll. A task of the
//! handler's own may register between two polls: then the scope wakes the request.

#[cfg(feature = "axum")]
mod unread;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use http::Extensions;

pub(super) use self::watch::Watch;
use super::options::Options;
use super::request_locks::RequestLocks;
use crate::lock::Heir;
use crate::{Held, LockGuard};

/// The scope of a request, which keeps guards until the response is complete.
///
/// A [`LockScopeLayer`](crate::LockScopeLayer) and every [`LockLayer`](crate::LockLayer) open a scope. With the feature
/// `axum`, this type is an extractor. Without a scope it rejects the request with 500, and `Option<LockScope>` is `None`.
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
/// ) -> Result<&'static str, Error> {
///     // The key is known only after a look-up.
///     let guard = locks.acquire("month:2026-01").no_wait().await?;
///     scope.keep(guard);
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
    shared: Arc<Shared>,
}

/// What the two ends of a scope share.
#[derive(Default)]
struct Shared {
    /// `None` only while no request uses it.
    settings: Option<Arc<Options>>,
    state: Mutex<State>,
    #[cfg(feature = "axum")]
    unread: Mutex<super::body_first::ReadBody<axum::body::Body>>,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// Registered guards that the watch has not seen yet.
    new: Vec<Held>,
    kept: Vec<LockGuard>,
    /// Set between two polls of the request.
    waker: Option<Waker>,
}

impl LockScope {
    /// Returns the innermost scope of the request, or `None` without a layer that opens one.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        RequestLocks::scope(extensions)
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

    #[cfg(feature = "axum")]
    pub(crate) fn settings(&self) -> Option<&Options> {
        self.shared.settings.as_deref()
    }

    fn register(&self, held: Held, guard: Option<LockGuard>) {
        let mut state = self.shared.state();
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

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heir for Shared {
    fn inherit(&self, guard: LockGuard) {
        let mut state = self.state();
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
