//! The state that the clones of a backend share.

use std::sync::Arc;

use super::command::{AcquireBatch, Calls};
use super::connection::Network;
use super::topology::{MinReplicas, Topology};
use crate::LockKey;

pub(crate) struct Inner {
    pub(crate) calls: Arc<Calls>,
    pub(crate) topology: Box<dyn Topology>,
    pub(crate) network: Arc<Network>,
    pub(crate) min_replicas: Option<MinReplicas>,
    /// One per connection. Empty if each acquire is a call of its own: in a cluster, where few keys share a
    /// slot, and if grants wait for replicas or may be in a quarantine.
    pub(crate) acquire_batches: Vec<Arc<AcquireBatch>>,
    /// The batches of shared leases and permits, as those of exclusive leases.
    pub(crate) share_batches: Vec<Arc<AcquireBatch>>,
    pub(crate) address: String,
    pub(crate) warnings: Vec<String>,
}

impl Inner {
    /// Returns `true` while a transfer of the key reaches this process. A waiter polls otherwise.
    pub(crate) fn is_subscribed(&self, key: &LockKey) -> bool {
        let channel = self.calls.names.channel(key).to_text();
        self.topology.is_subscribed(&channel)
    }

    /// Returns how many subscribers of a key's channel belong to this process and wait for nothing, or
    /// `None` if the server does not know all subscribers.
    pub(crate) fn own_subscribers(&self, key: &LockKey) -> Option<u8> {
        let channel = self.calls.names.channel(key).to_text();
        self.topology.own_subscribers(&channel)
    }
}
