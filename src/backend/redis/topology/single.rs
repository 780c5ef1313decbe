//! One server that has all keys, or the primary of a service.
//!
//! A proxy or an endpoint of a managed service may look like one server, and have the keys at several ones by
//! slot. It rejects calls over several slots, as a node of a cluster does, but names no nodes. Such a server
//! gets the calls and the fencing counters of a cluster: one slot per call, one counter per slot. The probe of a new
//! connection finds out, or the first acquire if the server rejected the probe. All processes must agree, or the tokens
//! of a key would come from two counters. Hence the probe uses keys of many slots.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::kind::{Routes, Topology};
use super::node::Node;
use super::route::Route;
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::command::{Names, SLOTS};
use crate::backend::redis::notify::Watcher;

pub(crate) struct Single {
    node: Arc<Node>,
    names: Names,
}

impl Single {
    pub(crate) fn new(node: Node, names: Names) -> Self {
        Self {
            node: Arc::new(node),
            names,
        }
    }

    fn is_sharded(&self) -> bool {
        self.node.spread().is_sharded.load(Ordering::Relaxed)
    }
}

impl Topology for Single {
    fn route(&self, key: &LockKey) -> Result<Route, BackendError> {
        let slot = self.is_sharded().then(|| self.names.slot(key));
        Ok(Route::direct(&self.node, key, slot))
    }

    fn shared_connection(&self, key: &LockKey) -> Option<usize> {
        (!self.is_sharded()).then(|| self.node.index_of(key))
    }

    fn watch(&self, channel: String, waiter: Watcher) {
        self.node.notifier.watch(channel, vec![waiter]);
    }

    fn look_out(&self) {
        self.node.connections[0].connector.look_out();
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        vec![Arc::clone(&self.node)]
    }

    fn is_cluster(&self) -> bool {
        false
    }

    fn route_at(&self, _node: &Arc<Node>, key: &LockKey) -> Option<Route> {
        self.route(key).ok()
    }

    fn counters(&self, node: &Arc<Node>) -> Routes {
        // The key selects one of the node's connections.
        let any = Route::direct(node, &LockKey::new("any"), None);
        match self.is_sharded() {
            true => Box::new((0..SLOTS).map(move |slot| any.sharded(slot))),
            false => Box::new(std::iter::once(any)),
        }
    }

    fn server_id(&self) -> Option<u64> {
        self.node.spread().server()
    }
}
