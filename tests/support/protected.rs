//! State that only the current holder of a lock may enter.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tower_lock::LockGuard;

#[derive(Default)]
pub(crate) struct Protected {
    inside: AtomicBool,
    last_token: AtomicI64,
}

/// Leaves the protected state when dropped, which must happen before the guard is released.
pub(crate) struct Inside<'a>(&'a Protected);

impl Protected {
    pub(crate) fn enter(&self, guard: &LockGuard) -> Inside<'_> {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two holders");
        let token = guard.fencing_token().get();
        let last = self.last_token.swap(token, Ordering::SeqCst);
        assert!(token > last, "token {token} after {last}");
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::SeqCst);
    }
}
