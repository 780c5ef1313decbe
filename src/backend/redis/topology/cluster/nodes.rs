//! The nodes of a cluster, and the owner of each slot.
//!
//! The map is what two nodes agree on, or else the view that covers the most slots: a node that was cut
//! off reports the past, or a part. The map is suspect after a reply that contradicts it (`MOVED`), or may
//! do so (no reply, no connection, `CLUSTERDOWN`). It is then refreshed at short intervals for a while:
//! a failover ends when a node reports it.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures_util::future::select_ok;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::map::{Map, Range, parse};
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, Names, entry, slot_of, unavailable, unexpected};
use crate::backend::redis::connection::{Connection, Origin, Target};
use crate::backend::redis::notify::Watcher;
use crate::backend::redis::notify::{Endpoint, Notifier, PubSub};
use crate::backend::redis::topology::{Node, NodeSettings};
use crate::jitter::jittered;
use crate::task::Timer;

/// The interval of refreshes while the map is suspect.
const REFRESH: Duration = Duration::from_millis(200);
/// How long the map stays suspect. This is longer than the pause between two attempts of a waiter, so
/// that the end of a failover is noticed without an attempt.
const SUSPECT: Duration = Duration::from_secs(2);
/// How many nodes are asked concurrently, so that a node that hangs does not delay the others.
const ASKED: usize = 3;

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
    fn quiet(&self, target: &Target) -> Arc<Connection> {
        let origin = Origin::Server(Arc::new(target.clone()));
        Arc::new(Connection::quiet(self.node.connector(origin).into()))
    }

    /// Returns `true` if the first seed that replies has sharded messages, which exist since 7.0.
    pub(crate) async fn have_sharded_messages(&self) -> Result<bool, BackendError> {
        let asked = self.seeds.iter().map(|seed| {
            let connection = self.quiet(seed);
            async move { connection.query(&redis::cmd("HELLO")).await }.boxed()
        });
        let (hello, _others) = select_ok(asked).await?;
        let version = entry(&hello, "version").unwrap_or_default();
        let major = version.split('.').next().unwrap_or_default();
        Ok(major.parse::<u32>().is_ok_and(|major| major >= 7))
    }
}

pub(crate) struct Cluster {
    settings: ClusterSettings,
    myself: Weak<Cluster>,
    map: RwLock<Arc<Map>>,
    suspect_since: Mutex<Option<Instant>>,
    refreshing: AtomicBool,
    /// Waiters for slots that no node serves.
    homeless: Mutex<Vec<(String, Vec<Watcher>)>>,
    /// Connections to seeds, for one refresh after another.
    seed_connections: Mutex<Vec<Arc<Connection>>>,
}

impl Cluster {
    pub(crate) fn new(settings: ClusterSettings) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            settings,
            myself: Weak::clone(myself),
            map: RwLock::default(),
            suspect_since: Mutex::default(),
            refreshing: AtomicBool::new(false),
            homeless: Mutex::default(),
            seed_connections: Mutex::default(),
        })
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn suspect_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.suspect_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the nodes that serve slots.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.clone()
    }

    pub(crate) fn slot(&self, key: &LockKey) -> u16 {
        self.settings.names.slot(key)
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map().owner(slot).cloned()
    }

    pub(crate) fn slots_of(&self, node: &Node) -> Vec<u16> {
        self.map().slots_of(node)
    }

    /// Returns the node at the address of a redirection from the node at `asked`. If `moved`, that
    /// node serves the slot from now on.
    pub(crate) fn redirected(
        &self,
        address: &str,
        asked: &str,
        moved: Option<u16>,
    ) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        // A missing or unknown host means another port of the node that replied.
        let host = match host {
            "" | "?" => asked.rsplit_once(':')?.0,
            host => host,
        };
        let target = self.target(host.trim_matches(['[', ']']), port);
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

    /// Refreshes the map, which may be wrong, in the background.
    pub(crate) fn mark_suspect(&self) {
        *self.suspect_since() = Some(Instant::now());
        self.start();
    }

    fn start(&self) {
        if !self.refreshing.swap(true, Ordering::SeqCst) {
            let refreshing = Refreshing(Weak::clone(&self.myself));
            self.settings
                .node
                .network
                .background
                .spawn(refreshing.run());
        }
    }

    fn seed_connections(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        let connections = self.seed_connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns connections to the seeds that are no known nodes. The name of a seed may resolve to another
    /// node by now.
    fn seeds(&self, now: &Map) -> Vec<Arc<Connection>> {
        let mut connections = self.seed_connections();
        connections.retain(|it| now.node_at(it.address()).is_none());
        for seed in &self.settings.seeds {
            let is_known = now.node_at(&seed.address).is_some();
            if !is_known && !connections.iter().any(|it| it.address() == seed.address) {
                connections.push(self.settings.quiet(seed));
            }
        }
        connections.clone()
    }

    /// Closes the connections to the seeds. While the map is suspect, the next refresh needs them.
    fn leave_seeds(&self) {
        self.seed_connections().clear();
    }

    fn is_suspect(&self) -> bool {
        self.suspect_since()
            .is_some_and(|at| at.elapsed() < SUSPECT)
    }

    /// Learns the map before the first command, as [`refresh`](Self::refresh).
    pub(crate) async fn open(&self) -> Result<(), BackendError> {
        let learned = self.refresh().await;
        self.leave_seeds();
        learned
    }

    /// Asks for the map until two nodes agree, or the other nodes had their time, or all failed.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the map stays as it is.
    async fn refresh(&self) -> Result<(), BackendError> {
        let now = self.map();
        let known = now.nodes.iter().map(|node| &node.connections[0]);
        let mut connections: Vec<_> = known.map(Arc::clone).collect();
        // The first node differs each time, because its view may be stale.
        let first = Uuid::new_v4().as_u128() % connections.len().max(1) as u128;
        connections.rotate_left(usize::try_from(first).unwrap_or(0));
        connections.extend(self.seeds(&now));
        let mut rest = connections.iter();
        let mut replies: FuturesUnordered<_> = rest.by_ref().take(ASKED).map(ask).collect();
        let mut views: Vec<Vec<Range>> = Vec::new();
        let mut failure = unavailable(Cause::Nowhere);
        // Starts at the first reply, so a node that hangs delays the others by at most this.
        let mut second_opinion = pin!(pending().boxed());
        loop {
            let reply = tokio::select! {
                reply = replies.next() => reply,
                () = &mut second_opinion => None,
            };
            let Some(reply) = reply else { break };
            if reply.is_ok() && views.is_empty() {
                second_opinion.set(Timer::at(Instant::now() + REFRESH).boxed());
            }
            match reply {
                // A node that was cut off, or has just returned, reports the past, or a part.
                Ok(view) if views.contains(&view) => {
                    self.learn(&view);
                    return Ok(());
                }
                Ok(view) => views.push(view),
                Err(error) => {
                    failure = error;
                    replies.extend(rest.next().map(ask));
                }
            }
        }
        // No two nodes agree, or there is only one.
        match views.iter().max_by_key(|view| covered(view)) {
            Some(view) => {
                self.learn(view);
                Ok(())
            }
            None => Err(failure),
        }
    }

    /// Replaces the map.
    fn learn(&self, view: &[Range]) {
        let known = self.map();
        let mut map = Map::default();
        for range in view {
            let target = self.target(&range.host, range.port);
            let node = map.node_at(&target.address);
            let node = node.or_else(|| known.node_at(&target.address)).cloned();
            let node = node.unwrap_or_else(|| self.node(&target));
            map.assign(range.first..=range.last, &node);
        }
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, Arc::new(map));
        let recovered = before.is_recovered_by(&current);
        drop(current);
        self.rehouse(&before);
        if recovered {
            self.settings.node.network.recovery.report();
        }
    }

    fn target(&self, host: &str, port: u16) -> Target {
        self.settings.seeds[0].at(host, port)
    }

    fn node(&self, target: &Target) -> Arc<Node> {
        let myself = Weak::clone(&self.myself);
        let on_moved = move || {
            if let Some(cluster) = myself.upgrade() {
                cluster.mark_suspect();
            }
        };
        let endpoint = Endpoint {
            server: Arc::new(target.clone()),
            on_moved: Some(Box::new(on_moved)),
        };
        let settings = &self.settings.node;
        let network = Arc::clone(&settings.network);
        let notifier = Notifier::new(network, Some(endpoint), self.settings.kinds);
        let origin = Origin::Server(Arc::new(target.clone()));
        Arc::new(Node::new(settings, origin, notifier))
    }

    /// Watches a channel at the node that serves its slot, now and after each change of the map.
    pub(crate) fn watch(&self, channel: String, waiters: Vec<Watcher>) {
        // Under the lock of the map: a replacement of the map moves all waiters of the previous one.
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = map.owner(slot_of(&channel)) {
            node.notifier.watch(channel, waiters);
            return;
        }
        drop(map);
        self.homeless().push((channel, waiters));
        self.mark_suspect();
    }

    /// As [`Notifier::is_subscribed`].
    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        let map = self.map();
        let owner = map.owner(slot_of(channel));
        owner.is_some_and(|owner| owner.notifier.is_subscribed(channel))
    }

    /// As [`Notifier::own_subscribers`].
    pub(crate) fn own_subscribers(&self, channel: &str) -> Option<u8> {
        let map = self.map();
        map.owner(slot_of(channel))?
            .notifier
            .own_subscribers(channel)
    }

    fn homeless(&self) -> MutexGuard<'_, Vec<(String, Vec<Watcher>)>> {
        self.homeless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves subscriptions to the nodes that serve their slots now.
    fn rehouse(&self, before: &Map) {
        let now = self.map();
        let mut homeless = std::mem::take(&mut *self.homeless());
        // Compared by identity: a node with the same address may be a new one.
        let is_gone = |node: &&Arc<Node>| !now.nodes.iter().any(|it| Arc::ptr_eq(it, node));
        let gone = before.nodes.iter().filter(is_gone);
        for node in now.nodes.iter().chain(gone) {
            let lives_here = |channel: &str| {
                let owner = now.owner(slot_of(channel));
                owner.is_some_and(|owner| Arc::ptr_eq(owner, node))
            };
            homeless.extend(node.notifier.detach_foreign(lives_here));
        }
        for (channel, mut waiters) in homeless {
            waiters.retain(|waiter| !waiter.is_closed());
            if !waiters.is_empty() {
                self.watch(channel, waiters);
            }
        }
    }
}

async fn ask(connection: &Arc<Connection>) -> Result<Vec<Range>, BackendError> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let reply = connection.query(&question).await?;
    let address = connection.address().rsplit_once(':');
    let own_host = address.map_or("", |(host, _)| host.trim_matches(['[', ']']));
    parse(&reply, own_host).ok_or_else(|| unexpected(&reply))
}

fn covered(view: &[Range]) -> usize {
    view.iter()
        .map(|range| usize::from(range.last - range.first) + 1)
        .sum()
}

/// The task that refreshes the map. After every exit another can start.
struct Refreshing(Weak<Cluster>);

impl Refreshing {
    async fn run(self) {
        while let Some(cluster) = self.0.upgrade() {
            if !cluster.is_suspect() {
                cluster.leave_seeds();
                drop(self);
                // A call that marked the map between the check and the drop found the flag set.
                if cluster.is_suspect() {
                    cluster.start();
                }
                return;
            }
            // On an error the map stays suspect.
            drop(cluster.refresh().await);
            drop(cluster);
            sleep(jittered(REFRESH)).await;
        }
    }
}

impl Drop for Refreshing {
    fn drop(&mut self) {
        if let Some(cluster) = self.0.upgrade() {
            cluster.refreshing.store(false, Ordering::SeqCst);
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes();
        let addresses: Vec<_> = nodes.iter().map(|node| node.address()).collect();
        f.debug_tuple("Cluster").field(&addresses).finish()
    }
}
