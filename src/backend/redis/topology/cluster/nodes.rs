//! The nodes of a cluster, and the owner of each slot.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use futures_util::FutureExt;
use futures_util::future::select_ok;
use tokio::time::Instant;

use super::identity::Identity;
use super::map::Map;
use super::member::Member;
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::command::{Names, entry};
use crate::backend::redis::connection::{Connection, Locate, OneTask, Origin, Resend, Target};
use crate::backend::redis::notify::{Notifier, PubSub, Watcher};
use crate::backend::redis::topology::{Node, NodeSettings};
use crate::mutex::Mutex;

/// How to reach the nodes.
pub(crate) struct ClusterSettings {
    /// The nodes to ask first, and again when all known nodes are gone. Never empty.
    pub(crate) seeds: Vec<Target>,
    pub(crate) node: NodeSettings,
    pub(crate) names: Names,
    /// The kinds of messages to subscribe to.
    pub(crate) kinds: &'static [PubSub],
}

impl ClusterSettings {
    /// Returns a connection that logs no outage.
    pub(super) fn quiet(&self, target: &Target) -> Arc<Connection> {
        let origin = Origin::Server(Arc::new(target.clone()));
        Arc::new(Connection::quiet(self.node.connector(origin).into()))
    }

    /// Returns `true` if the first seed that replies has sharded messages, which exist since 7.0.
    pub(crate) async fn have_sharded_messages(&self) -> Result<bool, BackendError> {
        let asked = self.seeds.iter().map(|seed| {
            let connection = self.quiet(seed);
            async move {
                connection
                    .query(&redis::cmd("HELLO"), Resend::Repeatable)
                    .await
            }
            .boxed()
        });
        let (hello, _others) = select_ok(asked).await?;
        let version = entry(&hello, "version").unwrap_or_default();
        let major = version.split('.').next().unwrap_or_default();
        Ok(major.parse::<u32>().is_ok_and(|major| major >= 7))
    }
}

pub(crate) struct Cluster {
    pub(super) settings: ClusterSettings,
    pub(super) myself: Weak<Cluster>,
    pub(super) map: RwLock<Arc<Map>>,
    pub(super) identity: Identity,
    pub(super) suspect_since: Mutex<Option<Instant>>,
    pub(super) refreshing: OneTask,
    /// Waiters for slots that no node serves.
    pub(super) homeless: Mutex<Vec<(String, Vec<Watcher>)>>,
    /// Connections to seeds, for one refresh after another.
    pub(super) seed_connections: Mutex<Vec<Arc<Connection>>>,
}

impl Cluster {
    pub(crate) fn new(settings: ClusterSettings) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            settings,
            myself: Weak::clone(myself),
            map: RwLock::default(),
            identity: Identity::default(),
            suspect_since: Mutex::default(),
            refreshing: OneTask::default(),
            homeless: Mutex::default(),
            seed_connections: Mutex::default(),
        })
    }

    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that a node replied to a command.
    pub(crate) fn heard(&self) {
        self.identity.heard();
    }

    pub(crate) fn slot(&self, key: &LockKey) -> u16 {
        self.settings.names.slot(key)
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map().owner(slot).cloned()
    }

    /// Returns the node at the address of a redirection from the node at `asked`. If `moved`, that
    /// node serves the slot from now on.
    pub(crate) fn redirected(
        &self,
        address: &str,
        asked: &str,
        moved: Option<u16>,
    ) -> Option<Arc<Node>> {
        let target = self.settings.seeds[0].redirected(address, asked)?;
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let known = map.node_at(&target.address).cloned();
        let node = known.unwrap_or_else(|| self.node(&target));
        if moved.is_some() || map.node_at(&target.address).is_none() {
            // A node that is asked before its slots arrive also becomes known.
            let mut changed = Map::clone(&map);
            changed.assign(moved, &node);
            *map = Arc::new(changed);
            drop(map);
            self.mark_suspect();
        }
        Some(node)
    }

    pub(super) fn target(&self, host: &str, port: u16) -> Target {
        self.settings.seeds[0].at(host, port)
    }

    pub(super) fn node(&self, target: &Target) -> Arc<Node> {
        let member: Arc<dyn Locate> = Arc::new(Member {
            target: target.clone(),
            cluster: Weak::clone(&self.myself),
        });
        let settings = &self.settings.node;
        let context = Arc::clone(&settings.context);
        let notifier = Notifier::new(context, Some(Arc::clone(&member)), self.settings.kinds);
        let origin = Origin::Server(member);
        Arc::new(Node::new(settings, origin, notifier))
    }
}
