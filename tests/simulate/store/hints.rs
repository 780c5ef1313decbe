//! The subscriptions of the processes.

use tower_lock::backend::{Hint, HintSender};

use super::Store;

/// A subscription that outlives its waiters.
pub(super) struct Lingering {
    /// The sender of the last waiter.
    last: HintSender,
    /// The last transfer that no waiter received.
    unclaimed: Option<Hint>,
}

impl Store {
    pub fn watch(&mut self, key: usize, manager: usize, sender: HintSender) {
        if self.lingers {
            let lingering = Lingering {
                last: sender.clone(),
                unclaimed: None,
            };
            self.lingering.insert((key, manager), lingering);
        }
        self.watchers
            .entry(key)
            .or_default()
            .push((manager, sender));
    }

    /// Watches a key by a subscription that lingers. Returns `false` without one.
    pub fn watch_again(&mut self, key: usize, manager: usize, sender: &HintSender) -> bool {
        let Some(lingering) = self.lingering.get_mut(&(key, manager)) else {
            return false;
        };
        let transfer = lingering.unclaimed.take();
        for hint in [Hint::Released].into_iter().chain(transfer) {
            sender.send(hint);
        }
        self.watch(key, manager, sender.clone());
        true
    }

    /// Sends a transfer to the waiters of a process, or keeps it for the next one. The process checks each transfer that
    /// one of its waiters does not receive. Redis has it checked only if none receives it.
    pub fn notify(&mut self, key: usize, manager: usize, transfer: Hint) {
        let watchers = self.watchers.get(&key).into_iter().flatten();
        let own = watchers.filter(|(of, sender)| *of == manager && !sender.is_closed());
        let own: Vec<_> = own.collect();
        if own.is_empty()
            && let Some(lingering) = self.lingering.get_mut(&(key, manager))
        {
            lingering.unclaimed = Some(transfer);
            // The process leaves the lease if it does not wait for it.
            lingering.last.send(transfer);
        }
        own.iter().for_each(|(_, sender)| sender.send(transfer));
    }

    /// Ends the subscriptions of a process.
    pub fn unsubscribe(&mut self, manager: usize) {
        self.lingering.retain(|(_, of), _| *of != manager);
    }

    pub fn watch_recoveries(&mut self, manager: usize, sender: HintSender) {
        self.recoveries.push((manager, sender));
    }

    /// How many watch a key.
    pub fn watching(&mut self, key: usize) -> u32 {
        let Some(watchers) = self.watchers.get_mut(&key) else {
            return 0;
        };
        watchers.retain(|(_, sender)| !sender.is_closed());
        u32::try_from(watchers.len()).unwrap_or(u32::MAX)
    }

    /// Whether a process has a subscription to a key.
    pub fn hears(&self, key: usize, manager: usize) -> bool {
        let watchers = self.watchers.get(&key).into_iter().flatten();
        self.lingering.contains_key(&(key, manager))
            || (watchers.filter(|(_, sender)| !sender.is_closed())).any(|(of, _)| *of == manager)
    }

    /// The processes that watch a key.
    pub(super) fn listening(&mut self, key: usize) -> Vec<usize> {
        self.watching(key);
        let watchers = self.watchers.get(&key).into_iter().flatten();
        let lingering = self.lingering.keys().filter(|(of, _)| *of == key);
        let lingering = lingering.map(|(_, manager)| *manager);
        (watchers.map(|(manager, _)| *manager))
            .chain(lingering)
            .collect()
    }

    pub fn senders(&mut self, key: usize) -> Vec<(usize, HintSender)> {
        self.watchers.get(&key).cloned().unwrap_or_default()
    }

    pub fn recovered(&self, manager: usize) {
        for (of, sender) in &self.recoveries {
            if *of == manager {
                sender.hint();
            }
        }
    }

    /// How many watch anything.
    pub fn subscriptions(&mut self) -> u32 {
        let keys: Vec<usize> = self.watchers.keys().copied().collect();
        keys.into_iter().map(|key| self.watching(key)).sum()
    }
}
