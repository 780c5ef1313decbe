//! The settings of a quorum.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::backend::Quorum;
use super::inner::{Inner, wall_clock};
use super::node::{ErasedNode, Node};
use crate::ConfigError;
use crate::backend::Erased;

const MIN_NODE_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_NODE_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds a [`Quorum`]. [`Quorum::builder`] creates it.
#[must_use = "a builder does nothing until `build` is called"]
pub struct QuorumBuilder {
    pub(super) nodes: Vec<Arc<dyn ErasedNode>>,
    pub(super) node_timeout: Duration,
}

impl QuorumBuilder {
    /// Adds a node: a store that shares nothing with the other nodes. A quorum requires an odd number of at
    /// least 3, and the same nodes in every process.
    ///
    /// A node is one server, and no Redis Cluster: a slot that moves between two servers of a cluster casts no vote
    /// until the move ends.
    pub fn node(mut self, node: impl Node) -> Self {
        self.nodes.push(Erased::new(node));
        self
    }

    /// Sets the timeout for the reply of one node. Defaults to 100 ms, from 1 ms to 60 s.
    ///
    /// A majority that replies does not wait for the other nodes, so the timeout only bounds the time to
    /// detect a missing majority. A command of the quorum takes at most four node timeouts: two rounds, the
    /// release, and a pause before the next attempt.
    ///
    /// The default exceeds a round trip within a region, also to a node that pauses briefly. Four node
    /// timeouts are 1 % of the default lease of 30 s. With shorter leases or distant nodes, set it
    /// accordingly.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Builds the quorum. No command is sent.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] for `node` if the number of nodes is even or below 3 or if two of them are
    /// [one server](Node::server_id), and for `node_timeout` if it is out of bounds.
    pub fn build(self) -> Result<Quorum, ConfigError> {
        let count = self.nodes.len();
        ConfigError::unless(count >= 3 && !count.is_multiple_of(2), "node", || {
            format!("a quorum of {count}: use 3 or 5, or add one to an even number")
        })?;
        let timeout = self.node_timeout;
        ConfigError::within(MIN_NODE_TIMEOUT..=MAX_NODE_TIMEOUT, "node_timeout", timeout)?;
        let inner = Inner::new(self.nodes, timeout, wall_clock);
        match inner.duplicate() {
            Some(cause) => Err(ConfigError::new("node", cause.to_string())),
            None => Ok(Quorum { inner }),
        }
    }
}

impl fmt::Debug for QuorumBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBuilder")
            .field("nodes", &self.nodes.len())
            .field("node_timeout", &self.node_timeout)
            .finish()
    }
}
