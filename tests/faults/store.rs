//! The servers of one run.

use crate::referee::wire::is_counter;
use crate::support::cluster::Cluster;
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;
use crate::support::service::Service;

/// The topology of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server with options. Each process has its own proxies in front of it.
    Single(&'static [&'static str]),
    /// One server with a wall clock of its own.
    Clock,
    Sentinel,
    /// Sentinels that name the host of each server instead of its IP address.
    SentinelByName,
    Cluster,
    /// A primary with two replicas behind one address.
    Endpoint,
    /// A cluster of one shard with three nodes, which announce one address.
    Shard,
    /// Five independent servers.
    Quorum,
    /// The row starts its own servers.
    Own,
}

impl Topology {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single(_) | Self::Clock => "single",
            Self::Sentinel | Self::SentinelByName => "sentinel",
            Self::Cluster => "cluster",
            Self::Endpoint => "endpoint",
            Self::Shard => "shard",
            Self::Quorum => "quorum",
            Self::Own => "-",
        }
    }
}

// One value exists per run.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Store {
    Single(RedisServer),
    Sentinel(SentinelSet),
    Cluster(Cluster),
    Service(Service),
    Quorum(Vec<RedisServer>),
    Own,
}

impl Store {
    pub(crate) async fn start(topology: Topology) -> Self {
        match topology {
            Topology::Single(options) => Self::Single(RedisServer::start_with(options)),
            Topology::Clock => Self::Single(RedisServer::start_with_clock()),
            Topology::Sentinel => Self::Sentinel(SentinelSet::start()),
            Topology::SentinelByName => Self::Sentinel(SentinelSet::start_by_name()),
            Topology::Cluster => Self::Cluster(Cluster::start()),
            Topology::Endpoint => Self::Service(Service::start().await),
            Topology::Shard => Self::Service(Service::start_shard().await),
            Topology::Quorum => Self::Quorum((0..5).map(|_| RedisServer::start()).collect()),
            Topology::Own => Self::Own,
        }
    }

    /// Returns all servers, including dead ones and replicas.
    pub(crate) fn all_servers(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) => vec![server],
            Self::Sentinel(set) => set.nodes().iter().collect(),
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Service(service) => service.servers.iter().collect(),
            Self::Quorum(servers) => servers.iter().collect(),
            Self::Own => Vec::new(),
        }
    }

    /// Returns the servers that may have locks and subscriptions.
    pub(crate) fn servers(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) => vec![server],
            Self::Sentinel(set) => vec![set.node(set.primary())],
            Self::Service(service) => vec![service.primary()],
            Self::Cluster(cluster) => {
                let primaries = cluster.primaries().into_iter();
                primaries.map(|node| cluster.node(node)).collect()
            }
            Self::Quorum(servers) => servers.iter().filter(|it| it.runs()).collect(),
            Self::Own => Vec::new(),
        }
    }

    /// Returns all keys but the counters.
    pub(crate) fn locks(&self) -> Vec<String> {
        self.locked().map(|(_, key)| key).collect()
    }

    /// Returns the same keys, each with its content and its remaining time.
    pub(crate) fn contents(&self) -> Vec<String> {
        let content = |(server, key): (&RedisServer, String)| {
            let content = match server.cli(&["TYPE", &key]).as_str() {
                "hash" => server.cli(&["HGETALL", &key]),
                "zset" => server.cli(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]),
                _ => server.cli(&["GET", &key]),
            };
            let left = server.cli(&["PTTL", &key]);
            format!("{key}: {}, {left} ms left", content.replace('\n', " "))
        };
        self.locked().map(content).collect()
    }

    fn locked(&self) -> impl Iterator<Item = (&RedisServer, String)> {
        let servers = self.servers().into_iter();
        servers.flat_map(|server| {
            let keys = server.cli(&["KEYS", "*"]);
            let keys = keys.lines().filter(|key| !is_counter(key));
            let keys: Vec<_> = keys.map(|key| (server, key.to_owned())).collect();
            keys
        })
    }

    /// Returns all channels with subscribers, except for those of the sentinels.
    pub(crate) fn channels(&self) -> Vec<String> {
        let asked = self.servers().into_iter().flat_map(|server| {
            ["CHANNELS", "SHARDCHANNELS"].map(|what| {
                // Servers before 7.0 have no sharded channels.
                server.command(&["PUBSUB", what]).unwrap_or_default()
            })
        });
        let asked: Vec<_> = asked.collect();
        let channels = asked.iter().flat_map(|channels| channels.lines());
        let ours = channels.filter(|channel| channel.starts_with("redisson"));
        ours.map(ToOwned::to_owned).collect()
    }
}
