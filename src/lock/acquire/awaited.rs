//! Whether a request for a lock was awaited.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::observe;

/// Reports a request that is dropped before its [`into_future`](IntoFuture::into_future). A request that was cloned is a
/// template, and so are its clones.
#[derive(Default)]
pub(super) struct Awaited(AtomicBool);

impl Awaited {
    pub(super) fn set(&mut self) {
        *self.0.get_mut() = true;
    }
}

impl Clone for Awaited {
    fn clone(&self) -> Self {
        self.0.store(true, Ordering::Relaxed);
        Self(AtomicBool::new(true))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if !*self.0.get_mut() {
            observe::not_awaited();
        }
    }
}
