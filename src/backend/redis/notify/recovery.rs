//! Notifies holders and waiters when the store is reachable again, or at another server.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::subscribers::Subscribers;
use crate::backend::{HintSender, Hints};

/// The subscribers of recoveries. While there is one, lost connections are replaced in the
/// background: a waiter between two attempts and a holder between two renewals send no command
/// that would replace them.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    subscribers: Mutex<Subscribers>,
}

impl Recovery {
    fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a subscription to every recovery from now on.
    pub(crate) fn hints(&self) -> Hints {
        let (sender, hints) = Hints::channel();
        self.subscribe(sender);
        hints
    }

    pub(crate) fn subscribe(&self, sender: HintSender) {
        self.subscribers().push(sender);
    }

    /// Returns `true` if there is a subscriber.
    pub(crate) fn is_awaited(&self) -> bool {
        self.subscribers().prune() > 0
    }

    pub(crate) fn report(&self) {
        self.subscribers().hint();
    }
}
