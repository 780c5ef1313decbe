//! What is asked of a server before the first lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;
use uuid::Uuid;

use super::backend::Inner;
use crate::backend::redis::command::{Cause, KeyRoute, plain, prepare};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::topology::{Cluster, Node, Route, Topology};
use crate::backend::{AcquireRequest, BackendError, BackendErrorKind, LeaseId, Release, Renewal};
use crate::error::with_causes;
use crate::{ConfigError, ConnectError, LockKey};

/// Long enough for the trial; a process that dies in it leaves nothing behind.
const TRIAL_TTL: Duration = Duration::from_secs(1);

/// Opens every connection and runs every script at every node; returns what is worth a warning.
///
/// Bounded by its parts: the connect timeout for the connections and again for the trial of the
/// subscription, the response timeout for each command. One deadline for all of it would take a
/// server far away for one that is down.
pub(crate) async fn self_test(inner: &Inner) -> Result<Vec<String>, ConnectError> {
    let trials = match &inner.topology {
        Topology::Single(node) => vec![test_node(inner, node, None).await?],
        Topology::Cluster(cluster) => {
            let nodes = cluster.nodes();
            let trials = nodes.iter().map(|node| async move {
                match test_node(inner, node, Some(cluster)).await {
                    // The others serve their slots; this one may be on its way to be replaced.
                    Err(error @ ConnectError::Unreachable { .. }) => Ok(vec![with_causes(&error)]),
                    outcome => outcome,
                }
            });
            try_join_all(trials).await?
        }
    };
    let warnings = trials.concat();
    #[cfg(feature = "tracing")]
    for warning in &warnings {
        tracing::warn!(address = inner.address, %warning, "lock server self-test warning");
    }
    Ok(warnings)
}

async fn test_node(
    inner: &Inner,
    node: &Node,
    cluster: Option<&Arc<Cluster>>,
) -> Result<Vec<String>, ConnectError> {
    let failed = |error: BackendError| connect_error(node.address(), error);
    try_join_all(node.connections.iter().map(Connection::await_link))
        .await
        .map_err(failed)?;

    let connection = &node.connections[0];
    // Says the role to those, too, who may not ask for `INFO`.
    let hello = plain(connection, &redis::cmd("HELLO")).await.ok();
    if let Some(trouble) = mistaken(hello.as_ref(), cluster.is_some()) {
        let error = BackendError::refused(BackendErrorKind::Misconfigured, trouble);
        return Err(failed(error));
    }

    let key = key_at(inner, node, cluster);
    let route = match cluster {
        Some(cluster) => {
            Route::in_cluster(node.connection(&key), cluster, &key, inner.names.slot(&key))
        }
        None => Route::alone(node.connection(&key)),
    };
    let at = KeyRoute {
        route: &route,
        names: &inner.names,
        key: &key,
    };
    let mut warnings = Vec::new();
    let tried = async {
        let left = prepare(inner, node, cluster).await?;
        let outcome = try_scripts(inner, node, at).await;
        if at.names.of_redisson {
            // It would stay for ever. What the trial ran into says more than what this does.
            let mut forget = redis::cmd("DEL");
            let forgotten = plain(connection, forget.arg(at.fence())).await;
            return outcome.and(forgotten.map(|_| left));
        }
        outcome.map(|()| left)
    };
    let tried = tried.await;
    if let Some(problem) = tried.as_ref().err().and_then(|error| shortage(node, error)) {
        return Err(ConfigError::new("min_replicas", problem).into());
    }
    match tried {
        Ok(Duration::ZERO) => {}
        Ok(left) => warnings.push(format!(
            "the server {} came back without its data, or is new; no lock is granted for another {left:?}",
            node.address()
        )),
        Err(error)
            if error.kind() == BackendErrorKind::Unavailable && !error.may_have_taken_effect() =>
        {
            let cause = std::error::Error::source(&error).map(with_causes);
            warnings.push(format!(
                "the server {} cannot take locks at the moment: {}",
                node.address(),
                cause.unwrap_or_default()
            ));
        }
        Err(error) => return Err(failed(error)),
    }
    let channel = inner.names.channel(&key).to_text();
    let subscribed = node.notifier.try_out(&channel).await;
    subscribed.map_err(|error| connect_error(node.notifier.address(), error))?;

    warnings.extend(replica(hello.as_ref()));
    warnings.extend(eviction(connection).await);
    Ok(warnings)
}

fn shortage(node: &Node, error: &BackendError) -> Option<String> {
    let Cause::TooFewReplicas {
        acknowledged,
        asked,
    } = Cause::behind(error)?
    else {
        return None;
    };
    let address = node.address();
    Some(format!(
        "the server {address} has {acknowledged} replicas that acknowledge, {asked} are asked for"
    ))
}

/// A key that is nobody else's, in a slot of this node.
fn key_at(inner: &Inner, node: &Node, cluster: Option<&Arc<Cluster>>) -> LockKey {
    loop {
        let key = LockKey::from_parts(["self-test", &Uuid::new_v4().to_string()]);
        let serves = |cluster: &Arc<Cluster>| cluster.serves(node, inner.names.slot(&key));
        if cluster.is_none_or(serves) {
            return key;
        }
    }
}

/// Every script once.
async fn try_scripts(inner: &Inner, node: &Node, at: KeyRoute<'_>) -> Result<(), BackendError> {
    let scripts = &inner.scripts;
    let (key, lease) = (at.key.clone(), LeaseId::new(Uuid::new_v4(), 1));
    // Reads first: a permission that is missing here costs nothing yet.
    scripts.inspect(at).await?;
    scripts.try_out(at, lease, TRIAL_TTL).await?;
    let mut granted = Vec::new();
    // Its one counter is not Redisson's.
    if !at.names.of_redisson {
        let again = [AcquireRequest::new(key.clone(), lease, TRIAL_TTL)];
        granted = scripts.acquire_all(at.route, at.names, &again).await?;
    }
    let renewal = Renewal::new(key.clone(), lease, TRIAL_TTL);
    let renewed = scripts.renew_all(at.route, at.names, &[&renewal]).await;
    // Asked to keep, then asked to release: both of its branches.
    scripts
        .release_or_keep(at, lease, TRIAL_TTL, Some(0), true)
        .await?;
    scripts
        .release_or_keep(at, lease, TRIAL_TTL, None, true)
        .await?;
    let released = scripts
        .release_all(at.route, at.names, &[&Release::new(key, lease)])
        .await;
    // Scripts get over a message that may not be sent, and `EVAL` is for bad times only: what they
    // need is asked for by itself.
    let connection = node.connection(at.key);
    plain(connection, &scripts.undo(at, lease)).await?;
    for message in scripts.messages(at) {
        plain(connection, &message).await?;
    }
    scripts.force_release(at).await?;
    granted
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))?;
    renewed?
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))?;
    released?
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))
}

/// A server of another kind than the URL says answers the scripts with riddles. Whoever may not be
/// asked is tried.
fn mistaken(hello: Option<&Value>, in_cluster: bool) -> Option<Cause> {
    match entry(hello?, "mode")?.as_str() {
        "cluster" if !in_cluster => Some(Cause::ClusterNode),
        "sentinel" => Some(Cause::Sentinel),
        _ => None,
    }
}

fn replica(hello: Option<&Value>) -> Option<String> {
    let role = entry(hello?, "role")?;
    let version = entry(hello?, "version").unwrap_or_default();
    (role != "master").then(|| format!("the server (version {version}) is a replica"))
}

/// A server that evicts keys evicts locks. Where the ACL hides the policy there is no warning.
async fn eviction(connection: &Arc<Connection>) -> Option<String> {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg("maxmemory-policy");
    let policy = match plain(connection, &config).await {
        Ok(answer) => entry(&answer, "maxmemory-policy")?,
        Err(_denied) => {
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            let answer = plain(connection, &info).await.ok()?;
            let text = text(&answer)?;
            let lines = text.lines();
            let mut policies = lines.filter_map(|line| line.strip_prefix("maxmemory_policy:"));
            policies.next()?.trim().to_owned()
        }
    };
    (policy != "noeviction").then(|| {
        format!("the server evicts keys (maxmemory-policy {policy}): locks may vanish while held")
    })
}

/// An entry of a map, in the form of either protocol version.
pub(crate) fn entry(answer: &Value, name: &str) -> Option<String> {
    let is_it = |key: &Value| text(key).is_some_and(|key| key == name);
    match answer {
        Value::Array(flat) => {
            let at = flat.iter().step_by(2).position(is_it)?;
            text(flat.get(2 * at + 1)?)
        }
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| is_it(key))
            .and_then(|(_, value)| text(value)),
        _ => None,
    }
}

pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

pub(crate) fn connect_error(address: &str, error: BackendError) -> ConnectError {
    let address = address.to_owned();
    let source = Arc::new(error);
    match source.kind() {
        BackendErrorKind::Unavailable => ConnectError::Unreachable { address, source },
        _ => ConnectError::Refused { address, source },
    }
}
