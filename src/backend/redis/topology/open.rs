//! Opens the topology that a URL or a pool names.

use std::sync::Arc;

use deadpool_redis::Pool;
use redis::RedisConnectionInfo;

use super::cluster::{Cluster, ClusterSettings};
use super::kind::Topology;
use super::node::{Node, NodeSettings};
use super::sentinel::Sentinels;
use super::single::Single;
use crate::backend::redis::command::{Cause, Names};
use crate::backend::redis::connection::{Locate, Origin, Target, Targets, Transport};
use crate::backend::redis::notify::{Notifier, PubSub, Publish};
use crate::backend::{BackendError, BackendErrorKind};
use crate::{ConfigError, ConnectError};

/// The servers of a backend, as the program names them.
pub(crate) enum ServerSource {
    Url(String),
    Pool(Pool),
}

/// The servers, and how to reach them.
pub(crate) struct Servers {
    pub(crate) source: ServerSource,
    /// The URL to subscribe at, if it differs.
    pub(crate) notify: Option<String>,
    pub(crate) sentinel_auth: Option<RedisConnectionInfo>,
    pub(crate) publish: Publish,
    pub(crate) transport: Transport,
}

/// The settings of a topology.
pub(crate) struct Open {
    pub(crate) servers: Servers,
    pub(crate) node: NodeSettings,
    pub(crate) names: Names,
    /// Whether no connection may be awaited.
    pub(crate) at_once: bool,
}

const NO_SENTINELS: &str = "the URL names no sentinels";
const ONE_SERVER: &str = "one server reports no addresses";

/// A topology, its name in errors and logs, and the kind of its messages.
pub(crate) type Opened = (Box<dyn Topology>, String, Publish);

/// Creates the topology. Only a cluster opens connections, to ask for its nodes.
pub(crate) async fn open(settings: Open) -> Result<Opened, ConnectError> {
    let Open {
        servers,
        node,
        names,
        at_once,
    } = settings;
    let Servers {
        source,
        notify,
        sentinel_auth,
        publish,
        transport,
    } = servers;
    let notify = notify.map(|url| Target::parse("notify", &url, &transport));
    let notify = notify.transpose()?;
    let (has_login, has_map) = (sentinel_auth.is_some(), transport.address_map.is_some());
    let targets = match source {
        ServerSource::Url(url) => Targets::parse("url", &url, &transport)?,
        ServerSource::Pool(pool) => {
            #[cfg(feature = "redis-tls")]
            if notify.is_none() {
                let problem = "connections are the pool's";
                transport.certificates.refuse(problem)?;
            }
            let asks = notify.is_none() && transport.credentials.is_some();
            reject(asks, "credentials", "connections are the pool's")?;
            reject(has_map, "address_map", ONE_SERVER)?;
            reject(has_login, "sentinel_auth", NO_SENTINELS)?;
            let subscribed = notify.map(|target| Arc::new(target) as Arc<dyn Locate>);
            let origin = Origin::Given(pool);
            return Ok(single(&node, names, origin, subscribed, publish));
        }
    };
    let mut has_messages = true;
    let server: Arc<dyn Locate> = match targets {
        Targets::Server(target) => {
            reject(has_login, "sentinel_auth", NO_SENTINELS)?;
            reject(has_map, "address_map", ONE_SERVER)?;
            has_messages = target.has_messages();
            Arc::new(*target)
        }
        Targets::Sentinel { sentinels, service } => {
            let login = sentinel_auth.unwrap_or_default();
            let context = Arc::clone(&node.context);
            Arc::new(Sentinels::new(sentinels, service, login, context))
        }
        Targets::Cluster { seeds } => {
            let own_nodes = "a cluster subscribes at its own nodes";
            reject(notify.is_some(), "notify", own_nodes)?;
            reject(has_login, "sentinel_auth", NO_SENTINELS)?;
            let asks_first = "a cluster is asked for its nodes first: use `connect`";
            reject(at_once, "url", asks_first)?;
            let settings = ClusterSettings {
                seeds,
                node,
                names,
                kinds: PubSub::kinds(publish),
            };
            return cluster(settings, publish).await;
        }
    };
    let subscribed: Option<Arc<dyn Locate>> = match notify {
        Some(target) => Some(Arc::new(target)),
        None => has_messages.then(|| Arc::clone(&server)),
    };
    let origin = Origin::Server(server);
    Ok(single(&node, names, origin, subscribed, publish))
}

/// Rejects a setting that does not fit the source.
fn reject(is_set: bool, setting: &'static str, problem: &str) -> Result<(), ConfigError> {
    match is_set {
        true => Err(ConfigError::new(setting, problem)),
        false => Ok(()),
    }
}

fn single(
    settings: &NodeSettings,
    names: Names,
    origin: Origin,
    subscribed: Option<Arc<dyn Locate>>,
    publish: Publish,
) -> Opened {
    let context = Arc::clone(&settings.context);
    let notifier = Notifier::new(context, subscribed, PubSub::kinds(publish));
    let probed = Some(names.clone());
    let settings = NodeSettings {
        probed,
        ..settings.clone()
    };
    let node = Node::new(&settings, origin, notifier);
    let address = node.address().to_owned();
    (Box::new(Single::new(node, names)), address, publish)
}

async fn cluster(
    mut settings: ClusterSettings,
    mut publish: Publish,
) -> Result<Opened, ConnectError> {
    let seeds: Vec<_> = settings
        .seeds
        .iter()
        .map(|it| it.address.as_str())
        .collect();
    let address = seeds.join(",");
    let failed = |error| connect_error(&address, error);
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
    cluster.open().await.map_err(failed)?;
    Ok((Box::new(cluster), address, publish))
}

/// Creates the error that ends the building of a backend.
pub(crate) fn connect_error(address: &str, error: BackendError) -> ConnectError {
    let address = address.to_owned();
    let source = Arc::new(error);
    match source.kind() {
        // A server that replied as no script of this crate does is no server for it.
        BackendErrorKind::Unavailable
            if !matches!(Cause::behind(&source), Some(Cause::Reply(_))) =>
        {
            ConnectError::Unreachable { address, source }
        }
        _ => ConnectError::Refused { address, source },
    }
}
