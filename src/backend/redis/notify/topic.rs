//! One watched channel: its waiters, the managers that subscribe to it, and the transfers that no waiter receives.

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
    /// The sender of its last watcher, which may have left.
    last: HintSender,
    /// The last transfer that no watcher received. A release can enter a place in the queue for the next waiter, and
    /// the transfer can arrive before that one watches.
    unclaimed: Option<Hint>,
}

/// A transfer that no watcher receives, and the sender that reports it.
pub(super) struct Unread {
    sender: HintSender,
    pub(super) transfer: Hint,
}

impl Unread {
    /// Reports the transfer to its manager.
    pub(super) fn report(self) {
        self.sender.report_unread(self.transfer);
    }
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
    pub(super) fn add_manager(&mut self, id: Uuid, sender: &HintSender) -> bool {
        let last = sender.clone();
        match self.manager(id) {
            Some(known) => {
                known.last = last;
                false
            }
            None => {
                let unclaimed = None;
                self.managers.push(Manager {
                    id,
                    last,
                    unclaimed,
                });
                true
            }
        }
    }

    /// Sends a transfer to the watchers of its manager, or keeps it for the next one. Returns the transfer that none
    /// receives, if there is one: this, or one before.
    pub(super) fn transferred(&mut self, lease: LeaseId, hint: Hint) -> Option<Unread> {
        let id = lease.manager();
        let own = (self.waiters.iter()).filter(|it| it.manager == Some(id) && !it.is_closed());
        let (mut is_received, mut unread) = (false, None);
        for watcher in own {
            let not_received = watcher.sender.offer(hint);
            if not_received != Some(hint) {
                is_received = true;
                unread = unread.or(not_received);
            }
        }
        let manager = self.manager(id)?;
        if !is_received {
            manager.unclaimed = Some(hint);
        }
        let transfer = if is_received { unread? } else { hint };
        let sender = manager.last.clone();
        Some(Unread { sender, transfer })
    }

    /// Sends the transfer that was kept for the manager of the watcher, if there is one.
    pub(super) fn claim(&mut self, watcher: &Watcher) {
        let manager = watcher.manager.and_then(|id| self.manager(id));
        if let Some(unclaimed) = manager.and_then(|manager| manager.unclaimed.take()) {
            // It was reported when it arrived.
            let _reported = watcher.sender.offer(unclaimed);
        }
    }

    pub(super) fn hint(&self, hint: Hint) {
        self.waiters.iter().for_each(|it| it.sender.send(hint));
    }
}

#[cfg(test)]
mod tests;
