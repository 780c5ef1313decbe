//! One server and the connections to it.

use std::sync::Arc;

use super::replicas::{MinReplicas, Replicas};
use crate::LockKey;
use crate::backend::outage::Outage;
use crate::backend::redis::command::Names;
use crate::backend::redis::connection::{
    ClientContext, Connection, Connector, OneTask, Origin, Spread,
};
use crate::backend::redis::notify::Notifier;
use crate::observe::Part;

/// What all nodes of a backend have in common.
#[derive(Clone)]
pub(crate) struct NodeSettings {
    /// The number of connections for commands.
    pub(crate) connections: usize,
    pub(crate) min_replicas: Option<MinReplicas>,
    pub(crate) context: Arc<ClientContext>,
    /// The names of the keys that probe whether the server is one. `None` in a cluster.
    pub(crate) probed: Option<Names>,
}

impl NodeSettings {
    pub(crate) fn connector(&self, origin: Origin) -> Connector {
        let checked_out = self.min_replicas.map_or(0, |_| Replicas::CONNECTIONS);
        let context = Arc::clone(&self.context);
        let probed = self.probed.clone();
        Connector::new(origin, self.connections, checked_out, context, probed)
    }
}

pub(crate) struct Node {
    /// Never empty.
    pub(crate) connections: Vec<Arc<Connection>>,
    /// `None` if grants do not wait for replicas.
    pub(crate) replicas: Option<Replicas>,
    /// Logs that the server grants nothing.
    pub(crate) outage: Outage,
    /// Logs that the server rejects releases.
    pub(crate) unreleased: Outage,
    pub(crate) notifier: Notifier,
    /// Inspects the counters of all slots.
    pub(crate) preparing: OneTask,
}

impl Node {
    pub(crate) fn new(settings: &NodeSettings, origin: Origin, notifier: Notifier) -> Self {
        let connector = Arc::new(settings.connector(origin));
        let room = connector.pool_size().saturating_sub(settings.connections);
        let outage = Outage::new(
            Part::Commands,
            "locks cannot be acquired",
            "locks can be acquired again",
            &connector.address,
        );
        let unreleased = Outage::new(
            Part::Releases,
            "locks cannot be released",
            "locks can be released again",
            &connector.address,
        );
        let connections = 0..settings.connections;
        Self {
            connections: connections
                .map(|_| Arc::new(Connection::new(Arc::clone(&connector))))
                .collect(),
            replicas: settings.min_replicas.map(|it| Replicas::new(it, room)),
            outage,
            unreleased,
            notifier,
            preparing: OneTask::default(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        self.connections[0].address()
    }

    pub(crate) fn spread(&self) -> &Spread {
        &self.connections[0].connector.spread
    }

    /// Returns the index of a key's connection. It never changes, so that a release cannot overtake its
    /// acquire.
    pub(crate) fn index_of(&self, key: &LockKey) -> usize {
        let connections = self.connections.len() as u64;
        usize::try_from(key.hash_code() % connections).unwrap_or(0)
    }
}
