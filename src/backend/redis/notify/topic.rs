//! One watched channel: its waiters, and the managers that subscribe to it.

use tokio::time::Instant;
use uuid::Uuid;

use super::subscription::{Subscription, Watcher};
use crate::backend::{Hint, HintSender, LeaseId};

#[derive(Default)]
pub(super) struct Topic {
    pub(super) waiters: Vec<Watcher>,
    /// A manager stays until the topic ends, because the end of a part of a subscription looks like the loss of the
    /// whole.
    pub(super) managers: Vec<Manager>,
    pub(super) confirmed: bool,
    /// The time at which a sweep found no waiter.
    pub(super) abandoned: Option<Instant>,
}

/// A manager whose channel belongs to a subscription.
pub(super) struct Manager {
    pub(super) id: Uuid,
    /// A release can enter a place in the queue for the next waiter, and its transfer can arrive before that waiter
    /// watches.
    last_transfer: Option<LeaseId>,
}

impl Topic {
    pub(super) fn subscription(&self, channel: &str) -> Subscription {
        Subscription {
            channel: channel.to_owned(),
            managers: self.managers.iter().map(|manager| manager.id).collect(),
        }
    }

    fn manager(&mut self, id: Uuid) -> Option<&mut Manager> {
        self.managers.iter_mut().find(|manager| manager.id == id)
    }

    /// Returns `true` if the manager is new.
    pub(super) fn add_manager(&mut self, id: Uuid) -> bool {
        let is_new = self.manager(id).is_none();
        if is_new {
            let last_transfer = None;
            self.managers.push(Manager { id, last_transfer });
        }
        is_new
    }

    /// Returns the receivers of a hint. Keeps a transfer for later watchers of its manager.
    pub(super) fn receivers(&mut self, hint: Hint) -> Vec<HintSender> {
        let to = match hint {
            Hint::Transferred { lease } => Some(lease.manager()),
            Hint::Released => None,
        };
        if let Hint::Transferred { lease } = hint
            && let Some(manager) = self.manager(lease.manager())
        {
            manager.last_transfer = Some(lease);
        }
        let waiters = self.waiters.iter();
        let waiters = waiters.filter(|it| to.is_none() || it.manager == to);
        waiters.map(|it| it.sender.clone()).collect()
    }

    /// Sends a new watcher what it may have missed of a confirmed subscription: a release, and the last transfer.
    pub(super) fn catch_up(&mut self, watcher: &Watcher) {
        watcher.sender.hint();
        let manager = watcher.manager.and_then(|id| self.manager(id));
        if let Some(lease) = manager.and_then(|manager| manager.last_transfer) {
            watcher.sender.send(Hint::transferred(lease));
        }
    }

    pub(super) fn hint(&self, hint: Hint) {
        self.waiters.iter().for_each(|it| it.sender.send(hint));
    }
}
