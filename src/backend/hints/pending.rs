//! The hints of one store that a waiter has not received yet.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use super::{Hint, PollEarly};
use crate::backend::LeaseId;
use crate::mutex::{Mutex, replace_waker};

/// The most transfers that a waiter keeps. Several lanes of a key with permits receive the transfers of all.
const MOST_TRANSFERS: usize = 16;

/// The hints that one waiter has not received yet.
#[derive(Default)]
pub(super) struct Pending {
    state: Mutex<PendingState>,
    /// Whether the waiter was dropped. Written under the mutex.
    is_closed: AtomicBool,
}

#[derive(Default)]
struct PendingState {
    released: bool,
    transferred: VecDeque<LeaseId>,
    /// The waker of the last task that polled for a hint.
    waker: Option<Waker>,
    /// The task that waits, if the sender of a hint may poll it.
    task: Option<Weak<dyn PollEarly>>,
}

impl PendingState {
    /// Adds a hint. With too many transfers, the key may be free instead, which causes an attempt as well.
    fn add(&mut self, hint: Hint) {
        match hint {
            Hint::Released => self.released = true,
            Hint::Transferred { lease } if self.transferred.contains(&lease) => {}
            Hint::Transferred { .. } if self.transferred.len() == MOST_TRANSFERS => {
                self.transferred.clear();
                self.released = true;
            }
            Hint::Transferred { lease } => self.transferred.push_back(lease),
        }
    }
}

impl Pending {
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Hint> {
        let mut state = self.state.lock();
        if let Some(lease) = state.transferred.pop_front() {
            return Poll::Ready(Hint::transferred(lease));
        }
        if std::mem::take(&mut state.released) {
            return Poll::Ready(Hint::Released);
        }
        let replaced = replace_waker(&mut state.waker, context.waker());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    pub(super) fn take_release(&self) -> bool {
        std::mem::take(&mut self.state.lock().released)
    }

    pub(super) fn poll_early(&self, task: Weak<dyn PollEarly>) {
        self.state.lock().task = Some(task);
    }

    /// Adds a hint, and polls the waiter. Wakes it if that is not possible.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis only"))]
    pub(super) fn add_and_poll(&self, hint: Hint) {
        let task = self.state.lock().task.as_ref().and_then(Weak::upgrade);
        if let Some(task) = task {
            self.state.lock().add(hint);
            if task.poll_early() {
                return;
            }
        }
        // Equal hints are one.
        self.add(hint);
    }

    /// Adds a hint, and wakes the waiter.
    pub(super) fn add(&self, hint: Hint) {
        let mut state = self.state.lock();
        state.add(hint);
        let waker = state.waker.take();
        // Waking runs code of the waiter's runtime, which must not run under the mutex.
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records that the waiter was dropped.
    fn close(&self) {
        let mut state = self.state.lock();
        self.is_closed.store(true, Ordering::Release);
        let waker = state.waker.take();
        drop(state);
        // The waker can own the task that drops these hints.
        drop(waker);
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
