//! The subscriptions to channels, each at the node that serves its slot.

use std::sync::{Arc, PoisonError};

use super::map::Map;
use super::nodes::Cluster;
use crate::backend::redis::command::slot_of;
use crate::backend::redis::notify::Watcher;
use crate::backend::redis::topology::Node;

impl Cluster {
    /// Watches a channel at the node that serves its slot, now and after each change of the map.
    pub(crate) fn watch(&self, channel: String, waiters: Vec<Watcher>) {
        // Under the lock of the map: a replacement of the map moves all waiters of the previous one.
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = map.owner(slot_of(&channel)) {
            node.notifier.watch(channel, waiters);
            return;
        }
        drop(map);
        self.homeless.lock().push((channel, waiters));
        self.mark_suspect();
    }

    /// Moves subscriptions to the nodes that serve their slots now.
    pub(super) fn rehouse(&self, before: &Map) {
        let now = self.map();
        let mut homeless = std::mem::take(&mut *self.homeless.lock());
        // Compared by identity: a node with the same address may be a new one.
        let is_gone = |node: &&Arc<Node>| !now.nodes.iter().any(|it| Arc::ptr_eq(it, node));
        let gone = before.nodes.iter().filter(is_gone);
        for node in now.nodes.iter().chain(gone) {
            let lives_here = |channel: &str| {
                let owner = now.owner(slot_of(channel));
                owner.is_some_and(|owner| Arc::ptr_eq(owner, node))
            };
            homeless.extend(node.notifier.detach_foreign(lives_here));
        }
        for (channel, mut waiters) in homeless {
            waiters.retain(|waiter| !waiter.is_closed());
            if !waiters.is_empty() {
                self.watch(channel, waiters);
            }
        }
    }
}
