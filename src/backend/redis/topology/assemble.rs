//! From the settings to the parts of a backend.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisConnectionInfo;

use crate::backend::redis::RedisBackendBuilder;
use crate::backend::redis::backend::Inner;
use crate::backend::redis::builder::Source;
use crate::backend::redis::command::{Names, Publish, Scripts};
use crate::backend::redis::connection::{
    Connector, Network, Origin, Recovery, Target, Targets, Transport,
};
use crate::backend::redis::notify::{Endpoint, Notifier, PubSub};
use crate::backend::redis::self_test::connect_error;
use crate::backend::redis::topology::{Cluster, Node, Sentinels, Settings, Topology};
use crate::task::Spawner;
use crate::{ConfigError, ConnectError};

/// How long sent bytes may stay unacknowledged, at least: less is an ordinary hiccup.
const MIN_USER_TIMEOUT: Duration = Duration::from_secs(5);

impl RedisBackendBuilder {
    /// Opens nothing but, in a cluster, a connection to ask for its nodes.
    pub(crate) async fn assemble(mut self) -> Result<Inner, ConnectError> {
        self.validate()?;
        let connections = self.connections.get();
        let names = Names::new(self.prefix, self.redisson_tokens)?;

        let transport = Transport {
            user_timeout: self.connect_timeout.max(MIN_USER_TIMEOUT),
            #[cfg(feature = "redis-tls")]
            certificates: self.certificates,
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
        let mut watched = None;
        let (origin, address, endpoint) = match self.source {
            Source::Pool(pool) => {
                #[cfg(feature = "redis-tls")]
                if notify.is_none() {
                    transport
                        .certificates
                        .refuse("connections are the pool's")?;
                }
                let address = "the given pool".to_owned();
                (Origin::Given(pool), address, notify.map(Endpoint::Server))
            }
            Source::Url(url) => match Targets::parse("url", &url, &transport)? {
                Targets::Server(target) => {
                    let address = target.address.clone();
                    let endpoint =
                        Endpoint::Server(notify.unwrap_or_else(|| Target::clone(&target)));
                    (Origin::Server(target), address, Some(endpoint))
                }
                Targets::Sentinel { sentinels, service } => {
                    let sentinels = Arc::new(Sentinels::new(
                        sentinels,
                        service,
                        self.sentinel_auth.take().unwrap_or_default(),
                        Arc::clone(&network),
                    ));
                    watched = Some(Arc::clone(&sentinels));
                    let address = sentinels.address.clone();
                    let endpoint = notify.map_or_else(
                        || Endpoint::Sentinel(Arc::clone(&sentinels)),
                        Endpoint::Server,
                    );
                    (Origin::Sentinel(sentinels), address, Some(endpoint))
                }
                Targets::Cluster { .. } if notify.is_some() => {
                    let problem = "the releases in a cluster are heard at its nodes";
                    return Err(ConfigError::new("notify", problem).into());
                }
                Targets::Cluster { seeds } => {
                    unused_sentinel_auth(&self.sentinel_auth)?;
                    let how = (self.publish, self.quarantine);
                    return in_cluster(seeds, connections, network, names, how).await;
                }
            },
        };
        unused_sentinel_auth(&self.sentinel_auth)?;
        let connector = Connector::new(origin, address.clone(), connections, Arc::clone(&network));
        let notifier = Notifier::new(Arc::clone(&network), endpoint, PubSub::kinds(self.publish));
        let node = Node::new(connector, connections, notifier);
        Ok(Inner {
            scripts: Scripts::new(self.publish, self.quarantine, names.of_redisson),
            batches_acquires: self.quarantine.is_none()
                && network.min_replicas.is_none()
                && !names.of_redisson,
            names,
            topology: Topology::Single(node),
            sentinels: watched,
            network,
            address,
            warnings: Vec::new(),
        })
    }
}

/// A login that is shown to nobody was meant for somebody.
fn unused_sentinel_auth(login: &Option<RedisConnectionInfo>) -> Result<(), ConfigError> {
    match login {
        None => Ok(()),
        Some(_) => Err(ConfigError::new(
            "sentinel_auth",
            "the URL names no sentinels",
        )),
    }
}

async fn in_cluster(
    seeds: Vec<Target>,
    connections: usize,
    network: Arc<Network>,
    names: Names,
    (mut publish, quarantine): (Publish, Option<Duration>),
) -> Result<Inner, ConnectError> {
    let addresses: Vec<_> = seeds.iter().map(|seed| seed.address.clone()).collect();
    let address = addresses.join(",");
    let failed = |error| connect_error(&address, error);
    let mut settings = Settings {
        seeds,
        connections,
        network: Arc::clone(&network),
        kinds: PubSub::kinds(publish),
    };
    if publish == Publish::Auto {
        let sharded = settings.have_sharded_messages().await.map_err(failed)?;
        publish = if sharded {
            Publish::Sharded
        } else {
            Publish::Plain
        };
        settings.kinds = PubSub::kinds(publish);
    }
    let cluster = Cluster::new(settings);
    cluster.refresh().await.map_err(failed)?;
    Ok(Inner {
        scripts: Scripts::new(publish, quarantine, names.of_redisson),
        names,
        topology: Topology::Cluster(cluster),
        sentinels: None,
        batches_acquires: false,
        network,
        address,
        warnings: Vec::new(),
    })
}
