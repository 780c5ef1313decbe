//! Whether a request for a lock was awaited.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::observe;

/// Reports a request that is dropped before its [`into_future`](IntoFuture::into_future). A request that was cloned is a
/// template, and so are its clones.
pub(super) struct Awaited {
    is_set: AtomicBool,
    /// Where the program created the request.
    place: &'static Location<'static>,
}

impl Awaited {
    #[track_caller]
    pub(super) fn new() -> Self {
        Self {
            is_set: AtomicBool::new(false),
            place: Location::caller(),
        }
    }

    pub(super) fn set(&mut self) {
        *self.is_set.get_mut() = true;
    }
}

impl Clone for Awaited {
    fn clone(&self) -> Self {
        self.is_set.store(true, Ordering::Relaxed);
        Self {
            is_set: AtomicBool::new(true),
            place: self.place,
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if !*self.is_set.get_mut() {
            observe::not_awaited(self.place);
        }
    }
}
