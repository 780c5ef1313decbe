//! One server that has all keys, or the primary of a service.

use std::sync::Arc;

use super::kind::{Routes, Topology};
use super::node::Node;
use super::route::Route;
use crate::LockKey;
use crate::backend::{BackendError, HintSender};

pub(crate) struct Single {
    node: Arc<Node>,
}

impl Single {
    pub(crate) fn new(node: Node) -> Self {
        Self {
            node: Arc::new(node),
        }
    }
}

impl Topology for Single {
    fn route(&self, key: &LockKey) -> Result<Route, BackendError> {
        Ok(Route::direct(&self.node, key))
    }

    fn share_call(&self, one: &LockKey, other: &LockKey) -> bool {
        self.node.index_of(one) == self.node.index_of(other)
    }

    fn watch(&self, channel: String, waiter: HintSender) {
        self.node.notifier.watch(channel, vec![waiter]);
    }

    fn own_subscribers(&self, channel: &str) -> Option<u8> {
        self.node.notifier.own_subscribers(channel)
    }

    fn look_out(&self) {
        self.node.connections[0].connector().look_out();
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        vec![Arc::clone(&self.node)]
    }

    fn is_cluster(&self) -> bool {
        false
    }

    fn route_at(&self, node: &Arc<Node>, key: &LockKey) -> Option<Route> {
        Some(Route::direct(node, key))
    }

    fn counters(&self, node: &Arc<Node>) -> Routes {
        // The key selects one of the node's connections.
        Box::new(std::iter::once(Route::direct(node, &LockKey::new("any"))))
    }

    fn siblings(&self, _key: &LockKey) -> Option<Arc<Node>> {
        None
    }
}
