//! The subscriptions of the processes.

use tower_lock::backend::{Hint, HintSender};

use super::Store;

impl Store {
    pub fn watch(&mut self, key: usize, manager: usize, sender: HintSender) {
        if self.lingers {
            self.lingering.entry((key, manager)).or_default();
        }
        self.watchers
            .entry(key)
            .or_default()
            .push((manager, sender));
    }

    /// Watches a key by a subscription that lingers. Returns `false` without one.
    pub fn watch_again(&mut self, key: usize, manager: usize, sender: &HintSender) -> bool {
        let Some(last) = self.lingering.get(&(key, manager)) else {
            return false;
        };
        for hint in [Some(Hint::Released), *last].into_iter().flatten() {
            sender.send(hint);
        }
        self.watch(key, manager, sender.clone());
        true
    }

    /// Sends a transfer to the waiters of a process, and keeps it for later ones.
    pub fn notify(&mut self, key: usize, manager: usize, transfer: Hint) {
        if let Some(last) = self.lingering.get_mut(&(key, manager)) {
            *last = Some(transfer);
        }
        let watchers = self.watchers.get(&key).into_iter().flatten();
        let own = watchers.filter(|(of, _)| *of == manager);
        own.for_each(|(_, sender)| sender.send(transfer));
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
