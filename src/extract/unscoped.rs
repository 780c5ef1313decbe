//! The warning about a guard that is released right after its grant.

use std::collections::BTreeSet;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::MatchedPath;
use http::Extensions;
use tokio::time::Instant;

use crate::LockGuard;
use crate::lock::Heir;

/// The heir of a guard without a scope, which releases it.
///
/// The arguments of a closure are on the stack, and those that its `async` block does not capture are dropped there,
/// before the first poll. The arguments of an `async fn` are in its future, which axum boxes. So the warning is about
/// a guard that is dropped on the stack within [`SOON`] of its grant.
///
/// This is a guess. A handler without an await can also drop its guard on the stack. An optimizing compiler may leave
/// the arguments of a closure in the box, and then there is no warning.
pub(super) struct Unscoped {
    route: Option<MatchedPath>,
    granted: Instant,
}

/// The routes with a warning. A program has few routes.
static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The largest distance between the guard and the frame of the heir, in bytes.
const NEAR: usize = 16 * 1024;

/// The longest time from the grant to the call of a handler.
const SOON: Duration = Duration::from_micros(50);

impl Unscoped {
    pub(super) fn route(extensions: &Extensions) -> Option<MatchedPath> {
        extensions.get().cloned()
    }

    pub(super) fn watch(guard: &mut LockGuard, route: Option<MatchedPath>) {
        let granted = Instant::now();
        guard.set_heir(Some(Arc::new(Self { route, granted })));
    }

    /// Returns `true` at the first call for a route.
    fn is_first(route: &str) -> bool {
        let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        !warned.contains(route) && warned.insert(route.to_owned())
    }
}

impl Heir for Unscoped {
    fn inherit(&self, guard: LockGuard, address: usize) {
        drop(guard);
        let frame = 0_u8;
        let is_near = ptr::from_ref(&frame).addr().abs_diff(address) < NEAR;
        if !is_near || self.granted.elapsed() > SOON {
            return;
        }
        let route = self.route.as_ref().map_or("", MatchedPath::as_str);
        if Self::is_first(route) {
            tracing::warn!(
                route,
                "guard of `Locked` released at once: add a `LockScopeLayer`, because a closure that does not \
                 name its guard runs unlocked"
            );
        }
    }
}
