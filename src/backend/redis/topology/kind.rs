//! What every topology provides.

use std::sync::Arc;

use super::node::Node;
use super::route::Route;
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::notify::Watcher;

/// Routes that are created one by one.
pub(crate) type Routes = Box<dyn Iterator<Item = Route> + Send>;

/// The servers of a backend, and the way to the server of each key.
pub(crate) trait Topology: Send + Sync {
    /// Returns the route of the commands for a key.
    fn route(&self, key: &LockKey) -> Result<Route, BackendError>;

    /// Returns the index of the connection whose keys certainly share calls with this one, or `None` if its calls must
    /// keep to one slot.
    fn shared_connection(&self, key: &LockKey) -> Option<usize>;

    /// Notifies a waiter of the messages on a channel.
    fn watch(&self, channel: String, waiter: Watcher);

    /// Starts to report a new server as a recovery.
    fn look_out(&self) {}

    /// Returns the current nodes.
    fn nodes(&self) -> Vec<Arc<Node>>;

    /// Returns `true` if each node serves a part of the keys.
    fn is_cluster(&self) -> bool;

    /// Returns the route of a key if `node` serves it.
    fn route_at(&self, node: &Arc<Node>, key: &LockKey) -> Option<Route>;

    /// Returns one route for each fencing counter of the node.
    fn counters(&self, node: &Arc<Node>) -> Routes;

    /// Returns an id of the only server, if it is known.
    fn server_id(&self) -> Option<u64> {
        None
    }
}
