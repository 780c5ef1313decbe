//! The state that the clones of a backend share.

use std::sync::{Arc, OnceLock};

use super::command::{AcquireBatch, Calls};
use super::connection::ClientContext;
use super::topology::{MinReplicas, Topology};

pub(crate) struct Inner {
    pub(crate) calls: Arc<Calls>,
    pub(crate) topology: Box<dyn Topology>,
    pub(crate) context: Arc<ClientContext>,
    pub(crate) min_replicas: Option<MinReplicas>,
    /// One per connection. Empty if each acquire is a call of its own: in a cluster, where few keys share a
    /// slot, and if grants wait for replicas or may be in a quarantine.
    pub(crate) acquire_batches: Vec<Arc<AcquireBatch>>,
    /// The batches of shared leases and permits, as those of exclusive leases.
    pub(crate) share_batches: Vec<Arc<AcquireBatch>>,
    pub(crate) address: String,
    /// The warnings of the trial, once it has ended.
    pub(crate) warnings: OnceLock<Vec<String>>,
}
