//! One server and the connections to it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::LockKey;
use crate::backend::redis::connection::{Connection, Connector};
use crate::backend::redis::notify::Notifier;

pub(crate) struct Node {
    pub(crate) connections: Vec<Arc<Connection>>,
    /// The subscriptions at this server.
    pub(crate) notifier: Notifier,
    /// Somebody looks at all of its slots.
    pub(crate) preparing: AtomicBool,
    address: String,
}

impl Node {
    pub(crate) fn new(connector: Connector, connections: usize, notifier: Notifier) -> Self {
        let address = connector.address.clone();
        let connector = Arc::new(connector);
        let connections = (0..connections)
            .map(|_| Arc::new(Connection::new(Arc::clone(&connector))))
            .collect();
        Self {
            connections,
            notifier,
            preparing: AtomicBool::new(false),
            address,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The connection of a key: always the same, so a release cannot overtake its acquire.
    pub(crate) fn connection(&self, key: &LockKey) -> &Arc<Connection> {
        let connections = self.connections.len() as u64;
        let index = usize::try_from(key.hash_code() % connections).unwrap_or(0);
        &self.connections[index]
    }
}
