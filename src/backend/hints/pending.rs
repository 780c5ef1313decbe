//! The hints of one store that a waiter has not received yet.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::Hint;
use crate::backend::LeaseId;

/// The hints that one waiter has not received yet. The senders hold it weakly, so it ends with the waiter.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) state: Mutex<PendingState>,
}

#[derive(Default)]
pub(super) struct PendingState {
    pub(super) released: bool,
    pub(super) transferred: Option<Hint>,
    pub(super) receives: Receives,
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

    pub(super) fn add(&self, hint: Hint) {
        let mut state = self.state();
        match hint {
            Hint::Released => state.released = true,
            Hint::Transferred { lease, .. } if state.receives.includes(lease) => {
                state.transferred = Some(hint);
            }
            Hint::Transferred { .. } => return,
        }
        let waker = state.waker.take();
        // Waking runs code of the waiter's runtime, which must not run under the mutex.
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Omits the lease, which identifies an owner.
impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
