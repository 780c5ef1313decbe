//! The hints of one store that a waiter has not received yet.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::Hint;
use crate::backend::LeaseId;

/// A function that is called with the lease of each transfer that the waiter does not receive. The caller can hold a
/// mutex of a store or of a lane, so the function must lock none of them.
pub(crate) type OnUnread = Arc<dyn Fn(LeaseId) + Send + Sync>;

/// The hints that one waiter has not received yet.
#[derive(Default)]
pub(super) struct Pending {
    state: Mutex<PendingState>,
    /// Whether the waiter was dropped. Written under the mutex.
    is_closed: AtomicBool,
}

#[derive(Default)]
pub(super) struct PendingState {
    pub(super) released: bool,
    pub(super) transferred: Option<Hint>,
    pub(super) receives: Receives,
    pub(super) on_unread: Option<OnUnread>,
    /// The waker of the last task that polled for a hint.
    waker: Option<Waker>,
}

/// The transfers that the waiter receives. Others would take the place of its own.
#[derive(Clone, Copy, Default)]
pub(super) enum Receives {
    #[default]
    All,
    Only(LeaseId),
    If(fn(LeaseId) -> bool),
}

impl Receives {
    pub(super) fn includes(self, lease: LeaseId) -> bool {
        match self {
            Self::All => true,
            Self::Only(own) => lease == own,
            Self::If(of) => of(lease),
        }
    }
}

impl Pending {
    pub(super) fn state(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Hint> {
        let mut state = self.state();
        if let Some(transferred) = state.transferred.take() {
            return Poll::Ready(transferred);
        }
        if std::mem::take(&mut state.released) {
            return Poll::Ready(Hint::Released);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Adds a hint. Returns the transfer that the waiter does not receive, if there is one: this, or one before.
    pub(super) fn add(&self, hint: Hint) -> Option<Hint> {
        let mut state = self.state();
        let mut unread = None;
        match hint {
            Hint::Released => state.released = true,
            Hint::Transferred { lease, .. } => {
                if self.is_closed() || !state.receives.includes(lease) {
                    return Some(hint);
                }
                unread = state.transferred.replace(hint);
            }
        }
        let waker = state.waker.take();
        // Waking runs code of the waiter's runtime, which must not run under the mutex.
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        unread.filter(|before| *before != hint)
    }

    /// Reports a transfer that the waiter does not receive.
    pub(super) fn report(&self, unread: Hint) {
        let Hint::Transferred { lease, .. } = unread else {
            return;
        };
        let on_unread = self.state().on_unread.clone();
        if let Some(on_unread) = on_unread {
            on_unread(lease);
        }
    }

    /// Records that the waiter was dropped.
    fn close(&self) {
        let mut state = self.state();
        self.is_closed.store(true, Ordering::Release);
        let (unread, waker) = (state.transferred.take(), state.waker.take());
        drop(state);
        // The waker can own the task that drops these hints.
        drop(waker);
        if let Some(unread) = unread {
            self.report(unread);
        }
    }
}

/// The receiving side, which ends with the waiter.
#[derive(Debug, Default)]
pub(super) struct Receiver(pub(super) Arc<Pending>);

impl Deref for Receiver {
    type Target = Pending;

    fn deref(&self) -> &Pending {
        &self.0
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.close();
    }
}

/// Omits the lease, which identifies an owner.
impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
