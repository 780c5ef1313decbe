//! A cluster as a topology.

use std::sync::Arc;

use super::nodes::Cluster;
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, unavailable};
use crate::backend::redis::notify::Watcher;
use crate::backend::redis::topology::{Node, Route, Routes, Topology};

impl Topology for Arc<Cluster> {
    fn route(&self, key: &LockKey) -> Result<Route, BackendError> {
        let slot = self.slot(key);
        match self.owner(slot) {
            Some(node) => Ok(Route::in_cluster(&node, self, key, slot)),
            None => {
                self.mark_suspect();
                Err(unavailable(Cause::Nowhere))
            }
        }
    }

    fn shared_connection(&self, _key: &LockKey) -> Option<usize> {
        None
    }

    fn watch(&self, channel: String, waiter: Watcher) {
        Cluster::watch(self, channel, vec![waiter]);
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.clone()
    }

    fn is_cluster(&self) -> bool {
        true
    }

    fn route_at(&self, node: &Arc<Node>, key: &LockKey) -> Option<Route> {
        let slot = self.slot(key);
        let owner = self.owner(slot)?;
        Arc::ptr_eq(&owner, node).then(|| Route::in_cluster(node, self, key, slot))
    }

    fn counters(&self, node: &Arc<Node>) -> Routes {
        // The key selects one of the node's connections.
        let key = LockKey::new("any");
        let (cluster, node) = (Arc::clone(self), Arc::clone(node));
        let slots = self.map().slots_of(&node).into_iter();
        Box::new(slots.map(move |slot| Route::in_cluster(&node, &cluster, &key, slot)))
    }
}
