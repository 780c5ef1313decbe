//! The settings of a Redis backend.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use redis::RedisConnectionInfo;

use super::RedisBackend;
use super::backend::Inner;
use super::cluster::{Cluster, Settings};
use super::connect::{Connector, Network, Origin};
use super::names::Names;
use super::node::Node;
use super::notify::{Ear, Notifier, Speech};
use super::place::Topology;
use super::recovery::Recovery;
use super::replicas::MinReplicas;
use super::script::{Publish, Scripts};
use super::self_test::{connect_error, self_test};
use super::sentinel::Sentinels;
use super::target::{Target, Targets, Transport};
use crate::task::Spawner;
use crate::{ConfigError, ConnectError};

const MAX_CONNECTIONS: usize = 256;
const MAX_REPLICAS: usize = 256;
/// As long as a lease may be.
const MAX_QUARANTINE: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long sent bytes may stay unacknowledged, at least: less is an ordinary hiccup.
const MIN_USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a [`RedisBackend`]; from [`RedisBackend::builder`] or [`RedisBackend::from_pool`].
///
/// Nothing is checked and nothing is opened before [`connect`](Self::connect).
#[must_use = "does nothing until `connect` is called"]
pub struct RedisBackendBuilder {
    source: Source,
    notify: Option<String>,
    prefix: String,
    connections: NonZeroUsize,
    connect_timeout: Duration,
    response_timeout: Duration,
    publish: Publish,
    sentinel_auth: RedisConnectionInfo,
    min_replicas: Option<MinReplicas>,
    quarantine: Option<Duration>,
}

enum Source {
    Url(String),
    Pool(Pool),
}

impl RedisBackendBuilder {
    pub(super) fn from_url(url: String) -> Self {
        Self::new(Source::Url(url))
    }

    pub(super) fn from_pool(pool: Pool) -> Self {
        Self::new(Source::Pool(pool))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            notify: None,
            prefix: "lock:".to_owned(),
            connections: NonZeroUsize::MIN,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_millis(500),
            publish: Publish::default(),
            sentinel_auth: RedisConnectionInfo::default(),
            min_replicas: None,
            quarantine: None,
        }
    }

    /// What every name in Redis starts with. Default: `lock:`. `""` shares names with Java
    /// services, whose `getLock("a")` is the key `a`.
    ///
    /// At most 256 bytes, without braces and control characters.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Over how many connections commands go. Default: 1; at most 256.
    ///
    /// One carries tens of thousands of locks per second. More help where TLS or a slow core on
    /// this side is the limit.
    pub fn connections(mut self, connections: NonZeroUsize) -> Self {
        self.connections = connections;
        self
    }

    /// How long a connection may take to open, log-in included. Default: 2 s; 1 ms to 10 min.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one command may take. Default: 500 ms; 1 ms to 10 min.
    ///
    /// After it the outcome is unknown, and what the command may have acquired is given back on
    /// the same connection.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Where to subscribe to releases. Default: the URL of the backend. Not for a cluster.
    ///
    /// A backend [from a pool](RedisBackend::from_pool) has no URL. Without this setting it
    /// subscribes to nothing: its waiters try at intervals of up to half a second, and it hands
    /// a lock on to other processes whenever it is asked to.
    pub fn notify(mut self, url: impl Into<String>) -> Self {
        self.notify = Some(url.into());
        self
    }

    /// By which commands releases are told and heard. Default: [`Publish::Auto`].
    pub fn publish(mut self, publish: Publish) -> Self {
        self.publish = publish;
        self
    }

    /// How to log in at the sentinels. Default: not at all. The user and the password in the URL are
    /// those of the primary.
    ///
    /// An empty user is the default user of the server.
    pub fn sentinel_auth(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        let login = RedisConnectionInfo::default().set_password(password);
        self.sentinel_auth = match user.as_ref() {
            "" => login,
            user => login.set_username(user),
        };
        self
    }

    /// How many replicas have to acknowledge a grant before it counts, and how long they have for
    /// that. Default: none; 1 to 256 replicas, 1 ms to 10 min. In a cluster: replicas of the node
    /// that has the key.
    ///
    /// A grant that too few acknowledge in time is given back, and the caller gets *unavailable*.
    /// Further tries at that server are then refused at once, for 50 ms at first and up to 400 ms.
    /// Renewals are not waited for.
    ///
    /// A failover to a replica that acknowledged keeps the lock. It may elect another one, which does
    /// not know of it, unless all replicas are asked for: `WAIT` is no consensus, and what was
    /// acknowledged is in the memory of the replicas, on no disk. So this makes a lock that is lost
    /// unlikely, not impossible; the fencing token is for what is left.
    ///
    /// Each acquire takes a connection out of the pool for itself, up to 32 at a time and node, which
    /// costs a `PING` besides the round trip to the replicas; up to 32 stay open. Renewals and
    /// releases go over the shared connections as always. A [pool](RedisBackend::from_pool) of your
    /// own should have room for the 32 besides the shared ones; with less, fewer acquire at a time.
    ///
    /// Connecting fails where too few replicas acknowledge. A user with an ACL needs `+wait`.
    pub fn min_replicas(mut self, replicas: NonZeroUsize, timeout: Duration) -> Self {
        let replicas = replicas.get();
        self.min_replicas = Some(MinReplicas { replicas, timeout });
        self
    }

    /// After Redis came back without its data, grants no lock for so long. Default: off; 1 ms to 366
    /// days.
    ///
    /// Whoever held a lock before does not know at once that it is gone. `max_lease` is the longest
    /// time that it may think so: the longest lease that any process takes there, which is the
    /// manager's watchdog timeout or a longer fixed lease. Callers get *unavailable* meanwhile.
    ///
    /// The loss is noticed by the fencing counter, which is missing then: so the very first start
    /// looks the same, and so does `FLUSHALL`. [`RedisBackend::warnings`] tells of a quarantine that
    /// is in force when the backend connects.
    ///
    /// All processes that share the server have to set it, to the same time. One that does not grants
    /// locks all the same, and writes a new counter, which hides the loss from the others. A Java
    /// service that shares the names knows nothing of it.
    ///
    /// In a cluster each slot has a counter. Connecting looks at all 16 384 of them, and creates
    /// those that are missing, about 5 MB in all. After a loss those of its node have their
    /// quarantine together.
    pub fn quarantine(mut self, max_lease: Duration) -> Self {
        self.quarantine = Some(max_lease);
        self
    }

    /// Opens the connections and tries out every script on a key of its own.
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Config`]: a setting is out of its bounds, a URL cannot be used, or a server
    ///   has not the replicas that [`min_replicas`](Self::min_replicas) asks for.
    /// - [`ConnectError::Unreachable`]: nobody answered within the connect timeout, or a command
    ///   of the trial within the response timeout.
    /// - [`ConnectError::Refused`]: the password is wrong, or the ACL lacks a permission.
    ///
    /// A server that is reachable and cannot take locks at the moment (memory full, still loading)
    /// is none of these: see [`RedisBackend::warnings`].
    ///
    /// # Cancel safety
    ///
    /// Connections that were opened are closed. A key of the trial may stay for a second.
    pub async fn connect(self) -> Result<RedisBackend, ConnectError> {
        let for_replicas = self.min_replicas.map(|it| it.timeout);
        for (field, time, max) in [
            ("connect_timeout", Some(self.connect_timeout), MAX_TIMEOUT),
            ("response_timeout", Some(self.response_timeout), MAX_TIMEOUT),
            ("min_replicas", for_replicas, MAX_TIMEOUT),
            ("quarantine", self.quarantine, MAX_QUARANTINE),
        ] {
            if let Some(time) = time
                && !(MIN_TIMEOUT..=max).contains(&time)
            {
                let problem = format!("{time:?} is not within {MIN_TIMEOUT:?} to {max:?}");
                return Err(ConfigError::new(field, problem).into());
            }
        }
        let connections = self.connections.get();
        if connections > MAX_CONNECTIONS {
            let problem = format!("more than {MAX_CONNECTIONS}");
            return Err(ConfigError::new("connections", problem).into());
        }
        if self
            .min_replicas
            .is_some_and(|it| it.replicas > MAX_REPLICAS)
        {
            let problem = format!("more than {MAX_REPLICAS}");
            return Err(ConfigError::new("min_replicas", problem).into());
        }
        let names = Names::new(self.prefix)?;

        let transport = Transport {
            user_timeout: self.connect_timeout.max(MIN_USER_TIMEOUT),
        };
        let network = Arc::new(Network {
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
            spawner: Spawner::default(),
            recovery: Recovery::default(),
            min_replicas: self.min_replicas,
        });
        let notify = match &self.notify {
            Some(url) => Some(Target::parse("notify", url, &transport)?),
            None => None,
        };
        let (origin, address, ear) = match self.source {
            Source::Pool(pool) => {
                let address = "the given pool".to_owned();
                (Origin::Given(pool), address, notify.map(Ear::Server))
            }
            Source::Url(url) => match Targets::parse("url", &url, &transport)? {
                Targets::Server(target) => {
                    let address = target.address.clone();
                    let ear = Ear::Server(notify.unwrap_or_else(|| Target::clone(&target)));
                    (Origin::Server(target), address, Some(ear))
                }
                Targets::Sentinel { sentinels, service } => {
                    let sentinels = Arc::new(Sentinels::new(
                        sentinels,
                        service,
                        self.sentinel_auth,
                        self.response_timeout,
                    ));
                    let address = sentinels.address();
                    let ear =
                        notify.map_or_else(|| Ear::Sentinel(Arc::clone(&sentinels)), Ear::Server);
                    (Origin::Sentinel(sentinels), address, Some(ear))
                }
                Targets::Cluster { seeds } => {
                    let how = (self.publish, self.quarantine);
                    return in_cluster(seeds, connections, network, names, how).await;
                }
            },
        };
        let connector = Connector::new(origin, address.clone(), connections, Arc::clone(&network));
        let publish = match self.publish {
            Publish::Auto => Publish::Plain,
            publish => publish,
        };
        let listen = |speech, ear| Notifier::new(Arc::clone(&network), ear, speech);
        let plain = publish
            .is_plain()
            .then(|| listen(Speech::Plain, ear.clone()));
        let node = Node::new(connector, connections, listen(Speech::Sharded, ear));
        finished(Inner {
            names,
            scripts: Scripts::new(publish, self.quarantine),
            topology: Topology::Single(node),
            plain,
            sharded: publish.is_sharded(),
            network,
            address,
            warnings: Vec::new(),
        })
        .await
    }
}

async fn in_cluster(
    seeds: Vec<Target>,
    connections: usize,
    network: Arc<Network>,
    names: Names,
    (publish, quarantine): (Publish, Option<Duration>),
) -> Result<RedisBackend, ConnectError> {
    let addresses: Vec<_> = seeds.iter().map(|seed| seed.address.clone()).collect();
    let address = addresses.join(",");
    let cluster = Cluster::new(Settings {
        seeds,
        connections,
        network: Arc::clone(&network),
    });
    let failed = |error| connect_error(&address, error);
    cluster.refresh().await.map_err(failed)?;
    let publish = match publish {
        Publish::Auto if cluster.has_sharded_messages().await.map_err(failed)? => Publish::Sharded,
        Publish::Auto => Publish::Plain,
        publish => publish,
    };
    let plain = publish.is_plain().then(|| {
        let ear = Ear::AnyNode(Arc::downgrade(&cluster));
        Notifier::new(Arc::clone(&network), Some(ear), Speech::Plain)
    });
    finished(Inner {
        names,
        scripts: Scripts::new(publish, quarantine),
        topology: Topology::Cluster(cluster),
        plain,
        sharded: publish.is_sharded(),
        network,
        address,
        warnings: Vec::new(),
    })
    .await
}

async fn finished(mut inner: Inner) -> Result<RedisBackend, ConnectError> {
    inner.warnings = self_test(&inner).await?;
    Ok(RedisBackend::new(inner))
}

impl fmt::Debug for RedisBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs and pools hold passwords.
        f.debug_struct("RedisBackendBuilder")
            .field("prefix", &self.prefix)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}
