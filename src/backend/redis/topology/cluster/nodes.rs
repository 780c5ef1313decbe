//! The nodes of a cluster, and the way to the one that serves a slot.
//!
//! The map is what two nodes said alike, or else the one that knew of the most slots: one that was cut
//! off tells of the past, or of a part. It is asked for again when an answer says that it is wrong
//! (`MOVED`) or may be (no answer, no connection, `CLUSTERDOWN`), and then for a while at short
//! intervals: a failover is over when a node says so, not before.

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
use crate::backend::redis::command::{Cause, CommandError, plain, slot_of, unexpected};
use crate::backend::redis::connection::{Connection, Connector, Network, Origin, Target};
use crate::backend::redis::notify::{Endpoint, Notifier, PubSub};
use crate::backend::redis::self_test::entry;
use crate::backend::redis::topology::{Node, Route};
use crate::backend::{BackendError, HintSender};
use crate::jitter::jittered;

/// How often the nodes are asked while the map is in doubt.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long a doubt lasts. Longer than a waiter's pause between two tries, so that a failover is
/// noticed when it is over and not when somebody tries.
const DOUBT: Duration = Duration::from_secs(2);
/// How many nodes are asked at once: one that hangs must not delay the answer of another.
const ASKED: usize = 3;

/// How to reach a node.
pub(crate) struct Settings {
    /// Where to ask first, and again when all known nodes are gone. Never empty.
    pub(crate) seeds: Vec<Target>,
    pub(crate) connections: usize,
    pub(crate) network: Arc<Network>,
    /// By which messages releases are heard.
    pub(crate) kinds: &'static [PubSub],
}

impl Settings {
    fn connector(&self, target: &Target) -> Connector {
        let network = Arc::clone(&self.network);
        let origin = Origin::Server(Box::new(target.clone()));
        let address = target.address.clone();
        Connector::new(origin, address, self.connections, network)
    }

    /// Whether the nodes have sharded messages: since 7.0. As the first of the seeds says that answers.
    pub(crate) async fn have_sharded_messages(&self) -> Result<bool, BackendError> {
        let asked = self.seeds.iter().map(|seed| {
            let connection = Arc::new(Connection::quiet(self.connector(seed).into()));
            async move { plain(&connection, &redis::cmd("HELLO")).await }.boxed()
        });
        let (hello, _others) = select_ok(asked).await?;
        let version = entry(&hello, "version").unwrap_or_default();
        let major = version.split('.').next().unwrap_or_default();
        Ok(major.parse::<u32>().is_ok_and(|major| major >= 7))
    }
}

pub(crate) struct Cluster {
    settings: Settings,
    myself: Weak<Cluster>,
    map: RwLock<Arc<Map>>,
    doubt: Mutex<Option<Instant>>,
    refreshing: AtomicBool,
    /// Watchers of slots that nobody serves at the moment.
    homeless: Mutex<Vec<(String, Vec<HintSender>)>>,
}

impl Cluster {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            settings,
            myself: Weak::clone(myself),
            map: RwLock::default(),
            doubt: Mutex::default(),
            refreshing: AtomicBool::new(false),
            homeless: Mutex::default(),
        })
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn doubted(&self) -> MutexGuard<'_, Option<Instant>> {
        self.doubt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes that serve slots.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.clone()
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map().owner(slot).cloned()
    }

    pub(crate) fn slots_of(&self, node: &Node) -> Vec<u16> {
        self.map().slots_of(node)
    }

    pub(crate) fn serves(&self, node: &Node, slot: u16) -> bool {
        let map = self.map();
        map.owner(slot)
            .is_some_and(|owner| std::ptr::eq(&**owner, node))
    }

    /// Where the commands for a key go.
    pub(crate) fn route(self: &Arc<Self>, key: &LockKey, slot: u16) -> Result<Route, BackendError> {
        match self.map().owner(slot) {
            Some(node) => Ok(Route::in_cluster(node.connection(key), self, key, slot)),
            None => {
                self.mark_suspect();
                Err(CommandError::unavailable(Cause::Nowhere).into())
            }
        }
    }

    /// The node at the address that an answer named. `moved`: it has the slot from now on.
    pub(crate) fn redirected(
        &self,
        address: &str,
        asked: &str,
        moved: Option<u16>,
    ) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        // Without a host, or one that it does not know, it is another port of the node that answered.
        let host = match host {
            "" | "?" => asked.rsplit_once(':')?.0,
            host => host,
        };
        let target = self.target(host.trim_matches(['[', ']']), port);
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let known = map.node_at(&target.address).cloned();
        let node = known.unwrap_or_else(|| self.node(&target));
        if moved.is_some() || map.node_at(&target.address).is_none() {
            // A node that is asked ahead of its slots is known from now on, too.
            let mut changed = Map::clone(&map);
            changed.assign(moved, &node);
            *map = Arc::new(changed);
            drop(map);
            self.mark_suspect();
        }
        Some(node)
    }

    /// The map may be wrong: asks for a new one, for as long as there is doubt.
    pub(crate) fn mark_suspect(&self) {
        *self.doubted() = Some(Instant::now());
        self.start();
    }

    fn start(&self) {
        if !self.refreshing.swap(true, Ordering::SeqCst) {
            let refreshing = Refreshing(Weak::clone(&self.myself));
            self.settings.network.spawner.spawn(refreshing.run());
        }
    }

    fn is_doubted(&self) -> bool {
        self.doubted().is_some_and(|at| at.elapsed() < DOUBT)
    }

    /// Asks for the map, until two say the same, the rest had their time, or nobody answers.
    pub(crate) async fn refresh(&self) -> Result<(), BackendError> {
        let now = self.map();
        let known = now.nodes.iter().map(|node| &node.connections[0]);
        let mut connections: Vec<_> = known.map(Arc::clone).collect();
        // Another one each time: what a node says may be old.
        let first = Uuid::new_v4().as_u128() % connections.len().max(1) as u128;
        connections.rotate_left(usize::try_from(first).unwrap_or(0));
        let seeds = self.settings.seeds.iter();
        // Their names may lead elsewhere by now.
        let seeds = seeds.filter(|seed| now.node_at(&seed.address).is_none());
        connections.extend(
            seeds.map(|seed| Arc::new(Connection::quiet(self.settings.connector(seed).into()))),
        );

        let mut rest = connections.iter();
        let mut answers: FuturesUnordered<_> = rest.by_ref().take(ASKED).map(ask).collect();
        let mut views: Vec<Vec<Range>> = Vec::new();
        let mut failure = CommandError::unavailable(Cause::Nowhere).into();
        // Counted from the first answer: one that hangs delays the others by so much at most.
        let mut second_opinion = pin!(pending().boxed());
        loop {
            let answer = tokio::select! {
                answer = answers.next() => answer,
                () = &mut second_opinion => None,
            };
            let Some(answer) = answer else { break };
            if answer.is_ok() && views.is_empty() {
                second_opinion.set(sleep(LOOK_AGAIN).boxed());
            }
            match answer {
                // A node that was cut off, or has just come back, tells of the past, or of a part.
                Ok(view) if views.contains(&view) => {
                    self.learn(&view);
                    return Ok(());
                }
                Ok(view) => views.push(view),
                Err(error) => {
                    failure = error;
                    answers.extend(rest.next().map(ask));
                }
            }
        }
        // No two agree, or there is only one: then whoever knows of the most slots.
        match views.iter().max_by_key(|view| covered(view)) {
            Some(view) => {
                self.learn(view);
                Ok(())
            }
            None => Err(failure),
        }
    }

    /// Takes over what was said.
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
        let changed = !before.agrees_with(&current);
        drop(current);
        self.rehouse(&before);
        if changed {
            self.settings.network.recovery.report();
        }
    }

    fn target(&self, host: &str, port: u16) -> Target {
        self.settings.seeds[0].at(host, port)
    }

    fn node(&self, target: &Target) -> Arc<Node> {
        let network = Arc::clone(&self.settings.network);
        let endpoint = Endpoint::Node(target.clone(), Weak::clone(&self.myself));
        let notifier = Notifier::new(network, Some(endpoint), self.settings.kinds);
        let connections = self.settings.connections;
        Arc::new(Node::new(
            self.settings.connector(target),
            connections,
            notifier,
        ))
    }

    /// Watches a channel at the node that serves its slot, now and after each change.
    pub(crate) fn watch(&self, channel: String, watchers: Vec<HintSender>) {
        // Under the map's lock: whoever replaces the map moves the watchers of before, all of them.
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = map.owner(slot_of(&channel)) {
            node.notifier.watch(channel, watchers);
            return;
        }
        drop(map);
        self.homeless().push((channel, watchers));
        self.mark_suspect();
    }

    /// As [`Notifier::own_subscribers`].
    pub(crate) fn own_subscribers(&self, channel: &str) -> Option<u8> {
        let map = self.map();
        map.owner(slot_of(channel))?
            .notifier
            .own_subscribers(channel)
    }

    fn homeless(&self) -> MutexGuard<'_, Vec<(String, Vec<HintSender>)>> {
        self.homeless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves subscriptions to where their slots are now.
    fn rehouse(&self, before: &Map) {
        let now = self.map();
        let mut homeless = std::mem::take(&mut *self.homeless());
        // Not by address: another node of the same name may have taken the place of one.
        let is_gone = |node: &&Arc<Node>| !now.nodes.iter().any(|it| Arc::ptr_eq(it, node));
        let gone = before.nodes.iter().filter(is_gone);
        for node in now.nodes.iter().chain(gone) {
            let lives_here = |channel: &str| {
                let owner = now.owner(slot_of(channel));
                owner.is_some_and(|owner| Arc::ptr_eq(owner, node))
            };
            homeless.extend(node.notifier.evict(lives_here));
        }
        for (channel, mut watchers) in homeless {
            watchers.retain(|watcher| !watcher.is_closed());
            if !watchers.is_empty() {
                self.watch(channel, watchers);
            }
        }
    }
}

async fn ask(connection: &Arc<Connection>) -> Result<Vec<Range>, BackendError> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let answer = plain(connection, &question).await?;
    let told = connection.address().rsplit_once(':');
    let own_host = told.map_or("", |(host, _)| host.trim_matches(['[', ']']));
    parse(&answer, own_host).ok_or_else(|| unexpected(&answer))
}

fn covered(view: &[Range]) -> usize {
    view.iter()
        .map(|range| usize::from(range.last - range.first) + 1)
        .sum()
}

/// The task that asks. On every exit the next doubt can start another.
struct Refreshing(Weak<Cluster>);

impl Refreshing {
    async fn run(self) {
        while let Some(cluster) = self.0.upgrade() {
            if !cluster.is_doubted() {
                drop(self);
                // Whoever doubted between the look and the flag found the flag set.
                if cluster.is_doubted() {
                    cluster.start();
                }
                return;
            }
            // Nobody answers: the doubt goes on.
            drop(cluster.refresh().await);
            drop(cluster);
            sleep(jittered(LOOK_AGAIN)).await;
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
