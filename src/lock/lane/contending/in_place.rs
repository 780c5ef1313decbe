//! The place of a first attempt that its acquire drives.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::backend::BoxFuture;

/// The place of a first attempt that its acquire drives. The lane knows it too, so home finds the attempt if its acquire
/// is not polled.
///
/// Only the acquire drops it with an attempt inside: the lane drops it under the mutex of its shard, and the drop of an
/// attempt is an event.
#[derive(Clone, Default)]
pub(in crate::lock) struct InPlace(Arc<Mutex<Option<BoxFuture<()>>>>);

impl InPlace {
    /// The mutex is held only to move the attempt.
    fn attempt(&self) -> MutexGuard<'_, Option<BoxFuture<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::lock) fn put(&self, attempt: BoxFuture<()>) {
        *self.attempt() = Some(attempt);
    }

    /// Takes the attempt out, to drive it elsewhere. Returns `None` if it is over, or is being polled.
    pub(in crate::lock) fn take(&self) -> Option<TakenAttempt> {
        self.attempt().take().map(TakenAttempt)
    }

    /// Polls the attempt. Completes once it is over or was taken out.
    pub(in crate::lock) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Without the mutex: home never waits for a caller.
        let Some(TakenAttempt(mut attempt)) = self.take() else {
            return Poll::Ready(());
        };
        let polled = attempt.as_mut().poll(cx);
        if polled.is_pending() {
            self.put(attempt);
        }
        polled
    }
}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InPlace").finish_non_exhaustive()
    }
}

/// A first attempt that its acquire no longer drives.
pub(in crate::lock) struct TakenAttempt(BoxFuture<()>);

impl TakenAttempt {
    /// Returns the task that finishes the attempt.
    pub(in crate::lock) fn into_task(self) -> BoxFuture<()> {
        self.0
    }
}

impl fmt::Debug for TakenAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TakenAttempt").finish_non_exhaustive()
    }
}
