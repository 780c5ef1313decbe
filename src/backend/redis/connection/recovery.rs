//! Tells those who hold and those who wait that the store answers again, or in another place.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{HintSender, Hints};

/// Who is to be told. While anybody is, lost connections are sought by themselves: a waiter between
/// two tries, or a holder between two renewals, sends nothing that would.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    listeners: Mutex<Listeners>,
}

#[derive(Debug, Default)]
struct Listeners {
    senders: Vec<HintSender>,
    /// Those who left are swept out when the list gets this long, which then doubles what is left.
    sweep_at: usize,
}

impl Recovery {
    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Hints at every recovery from now on.
    pub(crate) fn hints(&self) -> Hints {
        let (sender, hints) = Hints::channel();
        self.listen(sender);
        hints
    }

    pub(crate) fn listen(&self, sender: HintSender) {
        let mut listeners = self.listeners();
        if listeners.senders.len() >= listeners.sweep_at {
            listeners.senders.retain(|sender| !sender.is_closed());
            listeners.sweep_at = 16.max(2 * listeners.senders.len());
        }
        listeners.senders.push(sender);
    }

    /// Whether anybody would hear of it.
    pub(crate) fn is_awaited(&self) -> bool {
        let listeners = self.listeners();
        listeners.senders.iter().any(|sender| !sender.is_closed())
    }

    pub(crate) fn report(&self) {
        let mut listeners = self.listeners();
        listeners.senders.retain(|sender| !sender.is_closed());
        listeners.senders.iter().for_each(HintSender::hint);
    }
}
