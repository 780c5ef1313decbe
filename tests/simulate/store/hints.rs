//! The subscriptions of the processes.

use tower_lock::backend::HintSender;

use super::Store;

impl Store {
    pub fn watch(&mut self, key: usize, manager: usize, sender: HintSender) {
        self.watchers
            .entry(key)
            .or_default()
            .push((manager, sender));
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
        (watchers.filter(|(_, sender)| !sender.is_closed())).any(|(of, _)| *of == manager)
    }

    /// The processes that watch a key.
    pub(super) fn listening(&mut self, key: usize) -> Vec<usize> {
        self.watching(key);
        let watchers = self.watchers.get(&key).into_iter().flatten();
        watchers.map(|(manager, _)| *manager).collect()
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
