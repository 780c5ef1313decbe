//! The way of a command to the server of its key.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;

use super::cluster::Cluster;
use super::node::Node;
use crate::LockKey;
use crate::backend::redis::command::{Cause, CommandError};
use crate::backend::redis::connection::{Connection, Progress, Request};
use crate::backend::{BackendError, BackendErrorKind};

/// The most redirections that one command follows.
const REDIRECTIONS: usize = 5;

/// A connection of a node. In a cluster, commands follow their slot to other nodes.
#[derive(Clone)]
pub(crate) struct Route {
    node: Arc<Node>,
    index: usize,
    /// The slot that all keys of a call must have. `None` at a server that has all slots.
    slot: Option<u16>,
    roaming: Option<Roaming>,
    /// Grants wait for replicas, if the backend demands it.
    acknowledged: bool,
}

#[derive(Clone)]
struct Roaming {
    cluster: Arc<Cluster>,
    key: LockKey,
}

impl Route {
    /// Creates the route of a key to a server that has all keys, itself or behind it.
    pub(super) fn direct(node: &Arc<Node>, key: &LockKey, slot: Option<u16>) -> Self {
        Self {
            slot,
            ..Self::over(node, node.index_of(key))
        }
    }

    /// Creates the route of the keys with this connection to a server that has all slots.
    pub(crate) fn over(node: &Arc<Node>, index: usize) -> Self {
        Self {
            node: Arc::clone(node),
            index,
            slot: None,
            roaming: None,
            acknowledged: true,
        }
    }

    /// Creates the route of a key in a cluster.
    pub(super) fn in_cluster(
        node: &Arc<Node>,
        cluster: &Arc<Cluster>,
        key: &LockKey,
        slot: u16,
    ) -> Self {
        Self {
            roaming: Some(Roaming {
                cluster: Arc::clone(cluster),
                key: key.clone(),
            }),
            ..Self::direct(node, key, Some(slot))
        }
    }

    /// Returns the slot of a key that needs calls of its own slot, or `None` at a server that has all slots.
    pub(crate) fn slot(&self) -> Option<u16> {
        self.slot
    }

    /// Returns `true` if the slot of the key has a node of its own, whose address is known.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.roaming.is_some()
    }

    /// Returns the route of a key with this slot, to a server that rejects calls over several slots. New routes to it
    /// have a slot.
    pub(crate) fn sharded(&self, slot: u16) -> Self {
        self.node.spread().is_sharded.store(true, Ordering::Relaxed);
        Self {
            slot: Some(slot),
            ..self.clone()
        }
    }

    /// Returns the route of grants that wait for no replicas.
    pub(crate) fn without_replicas(&self) -> Self {
        Self {
            acknowledged: false,
            ..self.clone()
        }
    }

    /// Returns what the keys of one call have in common: the connection, and the slot if there is one.
    pub(crate) fn group(&self) -> (u64, u16) {
        (self.connection().id(), self.slot().unwrap_or(0))
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.node.connections[self.index]
    }

    /// Returns the node that has the key, as far as it is known.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Sends a command as [`Connection::send`], or as [`Replicas::acquire`] if replicas must acknowledge what it
    /// grants, and in a cluster to each node that it is redirected to.
    ///
    /// [`Replicas::acquire`]: super::replicas::Replicas::acquire
    pub(crate) async fn send(
        &self,
        request: &Request<'_>,
        progress: &mut Progress,
    ) -> Result<Value, CommandError> {
        let (mut node, mut index) = (Arc::clone(&self.node), self.index);
        progress.asking = false;
        for _ in 0..REDIRECTIONS {
            let connection = &node.connections[index];
            let replicas = node.replicas.as_ref().filter(|_| self.acknowledged);
            let outcome = match replicas.zip(request.undo) {
                // Boxed, so that other commands do not contain it.
                Some((replicas, undo)) => {
                    let acquire = replicas.acquire(connection, request, undo, progress.asking);
                    let acquired = Box::pin(acquire).await;
                    acquired.map_err(|error| error.after(progress.resent))
                }
                None => connection.send(request, progress).await,
            };
            let Err(CommandError::Elsewhere { address, asking }) = &outcome else {
                if let Some(roaming) = &self.roaming {
                    match &outcome {
                        Ok(_) => roaming.cluster.heard(),
                        Err(error) if error.is_topological() => roaming.cluster.mark_suspect(),
                        Err(_) => {}
                    }
                }
                return outcome;
            };
            let Some(roaming) = &self.roaming else {
                // The URL names a cluster node as a single server.
                let kind = BackendErrorKind::Misconfigured;
                let error = BackendError::refused(kind, Cause::Elsewhere);
                return Err(CommandError::Refused(error).after(progress.resent));
            };
            progress.asking = *asking;
            let moved = self.slot.filter(|_| !asking);
            let next = roaming.cluster.redirected(address, node.address(), moved);
            let Some(next) = next else { break };
            index = next.index_of(&roaming.key);
            node = next;
        }
        if let Some(roaming) = &self.roaming {
            roaming.cluster.mark_suspect();
        }
        Err(CommandError::unavailable(Cause::Elsewhere).after(progress.resent))
    }
}
