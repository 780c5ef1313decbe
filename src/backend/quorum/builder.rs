//! The settings of a quorum.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::backend::Quorum;
use super::inner::Inner;
use super::node::{ErasedNode, Node};
use crate::ConfigError;

const MIN_NODE_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_NODE_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds a [`Quorum`]; from [`Quorum::builder`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct QuorumBuilder {
    nodes: Vec<Arc<dyn ErasedNode>>,
    node_timeout: Duration,
}

impl QuorumBuilder {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            node_timeout: Duration::from_millis(100),
        }
    }

    /// Adds a node: a store that shares nothing with the others. An odd number, 3 or more; the same
    /// ones in every process.
    pub fn node(mut self, node: impl Node) -> Self {
        self.nodes.push(Arc::new(node));
        self
    }

    /// How long one node is waited for, where its answer matters. Default: 100 ms; 1 ms to 60 s.
    ///
    /// A majority that answers is never kept waiting by the rest, so this only bounds how long it
    /// takes to find out that there is none. A command of the quorum takes four of it at the most: two
    /// rounds, the give-back, and a pause before the next try.
    ///
    /// The default is far above a round trip within a region, also to a node that forks or hiccups,
    /// and far below the lease: of the default lease of 30 s, four of it are 1 %. With a shorter lease,
    /// or nodes farther apart, change it along.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// The quorum. Nothing is sent to any node.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the setting: `node` if their number is even or below 3,
    /// `node_timeout` if it is out of bounds.
    pub fn build(self) -> Result<Quorum, ConfigError> {
        let advice = match self.nodes.len() {
            0..3 => "give it 3 or 5, or use the one node without a quorum",
            count if count % 2 == 0 => {
                "an even one survives no more losses than with one node less: add one, or take one away"
            }
            _ => "",
        };
        if !advice.is_empty() {
            let problem = format!("a quorum of {}: {advice}", self.nodes.len());
            return Err(ConfigError::new("node", problem));
        }
        let timeout = self.node_timeout;
        if !(MIN_NODE_TIMEOUT..=MAX_NODE_TIMEOUT).contains(&timeout) {
            let problem =
                format!("{timeout:?} is not within {MIN_NODE_TIMEOUT:?} to {MAX_NODE_TIMEOUT:?}");
            return Err(ConfigError::new("node_timeout", problem));
        }
        Ok(Quorum::new(Inner::new(self.nodes, timeout)))
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
