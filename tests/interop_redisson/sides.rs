//! The servers that both sides share, and the processes on each side.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tower_lock::backend::redis::{Publish, RedisBackendBuilder};
use tower_lock::{LockManager, LockManagerBuilder, RedisBackend};

use crate::java::{Java, Place};
use crate::support::cluster::Cluster;
use crate::support::engine::{SECOND, eventually};
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;
use crate::table::Row;

/// The lease on both sides.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

pub(crate) const ONE_SERVER: &str = "one server";
pub(crate) const SENTINEL: &str = "Sentinel";
pub(crate) const CLUSTER: &str = "Cluster";
/// No client of this Cluster supports sharded messages.
pub(crate) const PLAIN: &str = "Cluster, plain messages";

/// Since 3.22, Redisson publishes sharded messages in a Cluster, as this crate does. Before, it published
/// plain ones.
pub(crate) fn publishes_plain(version: &str) -> bool {
    version == "3.16.8"
}

pub(crate) enum Store {
    Single(RedisServer),
    Sentinel(SentinelSet),
    Cluster(Cluster),
}

pub(crate) struct Sides {
    /// The version of Redisson.
    pub(crate) version: &'static str,
    pub(crate) place: &'static str,
    store: Store,
    publish: Publish,
    rows: Mutex<Vec<Row>>,
    /// The JVMs that no case uses: a start takes a second of a core.
    idle: Arc<Mutex<Vec<Java>>>,
}

/// A JVM that one case uses. The next one takes it as it is.
pub(crate) struct Lent {
    java: Option<Java>,
    idle: Arc<Mutex<Vec<Java>>>,
}

impl Sides {
    /// Starts the servers of this place.
    pub(crate) fn start(version: &'static str, place: &'static str) -> Self {
        let cluster = || Store::Cluster(Cluster::start());
        let (store, publish) = match place {
            ONE_SERVER => (Store::Single(RedisServer::start()), Publish::Auto),
            SENTINEL => (Store::Sentinel(SentinelSet::start()), Publish::Auto),
            PLAIN => (cluster(), Publish::Plain),
            _ if publishes_plain(version) => (cluster(), Publish::Both),
            _ => (cluster(), Publish::Auto),
        };
        Self {
            version,
            place,
            store,
            publish,
            rows: Mutex::default(),
            idle: Arc::default(),
        }
    }

    /// Starts another process of this crate. Returns its manager.
    pub(crate) async fn rust(&self) -> LockManager {
        self.keeping(Duration::ZERO).await
    }

    /// As [`rust`](Self::rust), and keeps released leases for this time.
    pub(crate) async fn keeping(&self, time: Duration) -> LockManager {
        let backend = RedisBackend::builder(self.url()).publish(self.publish);
        let locks = builder(backend).await.keep_released(time);
        locks.build().expect("valid settings")
    }

    pub(crate) fn url(&self) -> String {
        match &self.store {
            Store::Single(server) => server.url(),
            Store::Sentinel(set) => set.url(set.service()),
            Store::Cluster(cluster) => cluster.url(),
        }
    }

    /// Returns a JVM that no other case uses.
    pub(crate) async fn java(&self) -> Lent {
        let mut java = of(&self.idle).pop();
        if java.is_none() {
            java = Some(self.new_java().await);
        }
        let idle = Arc::clone(&self.idle);
        Lent { java, idle }
    }

    /// Starts another JVM.
    pub(crate) async fn new_java(&self) -> Java {
        let (kind, service, addresses) = match &self.store {
            Store::Single(server) => ("single", "-", server.address()),
            Store::Sentinel(set) => ("sentinel", set.service(), set.addresses()),
            Store::Cluster(cluster) => {
                let nodes = cluster.primaries().into_iter();
                let nodes: Vec<_> = nodes.map(|node| cluster.node(node).address()).collect();
                ("cluster", "-", nodes.join(","))
            }
        };
        let place = Place {
            kind,
            service,
            addresses: addresses.split(',').map(ToOwned::to_owned).collect(),
        };
        Java::start(self.version, &place, LEASE).await
    }

    pub(crate) fn server(&self) -> &RedisServer {
        match &self.store {
            Store::Single(server) => server,
            Store::Sentinel(set) => set.node(set.primary()),
            Store::Cluster(_) => panic!("a cluster has many"),
        }
    }

    /// Returns the servers that may have keys and subscriptions.
    fn nodes(&self) -> Vec<&RedisServer> {
        match &self.store {
            Store::Cluster(cluster) => {
                let nodes = cluster.primaries().into_iter();
                nodes.map(|node| cluster.node(node)).collect()
            }
            _ => vec![self.server()],
        }
    }

    /// Returns the server of a key.
    pub(crate) fn node_of(&self, name: &str) -> &RedisServer {
        match &self.store {
            Store::Cluster(cluster) => cluster.node(cluster.node_of(name)),
            _ => self.server(),
        }
    }

    /// Returns the slot of a key, if the topology has slots.
    pub(crate) fn slot(&self, key: &str) -> Option<u16> {
        match &self.store {
            Store::Cluster(cluster) => Some(cluster.slot(key)),
            _ => None,
        }
    }

    /// Returns the number of channels of one process of this crate.
    pub(crate) fn own_subscriptions(&self) -> u64 {
        match self.publish {
            Publish::Both => 2,
            _ => 1,
        }
    }

    /// Returns the number of subscribers to the releases of a lock, on both sides.
    pub(crate) fn listeners(&self, name: &str) -> u64 {
        let channel = channel(name);
        let counts = self.nodes().into_iter().flat_map(|node| {
            ["NUMSUB", "SHARDNUMSUB"].map(|kind| {
                let answer = node.cli(&["PUBSUB", kind, &channel]);
                let count = answer
                    .lines()
                    .last()
                    .and_then(|line| line.parse::<u64>().ok());
                count.expect("a count")
            })
        });
        counts.sum()
    }

    pub(crate) async fn listened_to(&self, name: &str, by: u64) {
        eventually("both wait", || self.listeners(name) >= by).await;
    }

    /// Returns all channels with subscribers.
    pub(crate) fn channels(&self) -> Vec<String> {
        let nodes = self.nodes().into_iter();
        let channels = nodes
            .flat_map(|node| ["CHANNELS", "SHARDCHANNELS"].map(|kind| node.cli(&["PUBSUB", kind])));
        let lines: Vec<String> = channels
            .flat_map(|all| all.lines().map(ToOwned::to_owned).collect::<Vec<_>>())
            .collect();
        lines
    }

    pub(crate) fn row(&self, case: &'static str, direction: &'static str, result: String) {
        let Self { version, place, .. } = *self;
        println!("{case}, {version}, {place}, {direction}: {result}");
        of(&self.rows).push(Row {
            case,
            version,
            place,
            direction,
            result,
        });
    }

    pub(crate) fn take_rows(&self) -> Vec<Row> {
        std::mem::take(&mut of(&self.rows))
    }
}

fn of<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deref for Lent {
    type Target = Java;

    fn deref(&self) -> &Java {
        self.java.as_ref().expect("only the drop takes it")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Java {
        self.java.as_mut().expect("only the drop takes it")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        of(&self.idle).extend(self.java.take());
    }
}

pub(crate) async fn manager(backend: RedisBackendBuilder) -> LockManager {
    builder(backend).await.build().expect("valid settings")
}

async fn builder(backend: RedisBackendBuilder) -> LockManagerBuilder {
    // At the start, seven sets of servers and the JVMs share the cores.
    let backend = backend.prefix("").response_timeout(SECOND);
    let backend = backend.connect().await;
    let backend = backend.expect("the servers are there");
    LockManager::builder(backend)
        .watchdog_timeout(LEASE)
        .wait(60 * SECOND)
}

/// Returns the channel that Java subscribes to, see the case about names.
pub(crate) fn channel(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}
