//! Checks of the servers before the first lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;
use uuid::Uuid;

use super::command::{Cause, KeyRoute, entry, prepare, text};
use super::connection::{Connection, Resend};
use super::inner::Inner;
use super::topology::{Node, Route, connect_error};
use crate::backend::{
    AcquireRequest, BackendError, BackendErrorKind, ContendRequest, KeepRequest, LeaseId, Release,
    Renewal,
};
use crate::error::with_causes;
use crate::{ConfigError, ConnectError, LockKey};

/// The TTL of the trial's lock, which expires if the process dies.
const TRIAL_TTL: Duration = Duration::from_secs(1);

/// Opens all connections and calls every script at every node. Returns the warnings.
///
/// Each part has its own limit: the connect timeout for the connections and for the trial of the
/// subscription, the response timeout for each command. With a single deadline, a distant server would seem
/// unavailable.
pub(crate) async fn self_test(inner: &Inner) -> Result<Vec<String>, ConnectError> {
    let nodes = inner.topology.nodes();
    let trials = nodes.iter().map(|node| async move {
        match test_node(inner, node).await {
            // The other nodes serve their slots. This one may be about to be replaced.
            Err(error @ ConnectError::Unreachable { .. }) if inner.topology.is_cluster() => {
                Ok(vec![with_causes(&error)])
            }
            outcome => outcome,
        }
    });
    let warnings = try_join_all(trials).await?.concat();
    #[cfg(feature = "tracing")]
    for warning in &warnings {
        tracing::warn!(address = inner.address, %warning, "lock server self-test warning");
    }
    Ok(warnings)
}

async fn test_node(inner: &Inner, node: &Arc<Node>) -> Result<Vec<String>, ConnectError> {
    let failed = |error: BackendError| connect_error(node.address(), error);
    try_join_all(node.connections.iter().map(Connection::await_link))
        .await
        .map_err(failed)?;

    let connection = &node.connections[0];
    // Unlike `INFO`, `HELLO` reports the role without a permission.
    let hello = connection
        .query(&redis::cmd("HELLO"), Resend::Repeatable)
        .await
        .ok();
    if let Some(cause) = mistaken(hello.as_ref(), inner.topology.is_cluster()) {
        let error = BackendError::refused(BackendErrorKind::Misconfigured, cause);
        return Err(failed(error));
    }

    let (key, mut route) = key_at(inner, node);
    // Before the first counter, which a sharded server has for each slot.
    let found = match inner.topology.is_cluster() {
        true => Ok(()),
        false => inner.calls.find_shards(&route).await,
    };
    if let Some(found) = inner.topology.route_at(node, &key) {
        route = found;
    }
    let at = inner.calls.at(&route, &key);
    let mut warnings = Vec::new();
    if inner.calls.are_queues_denied(at).await {
        inner.calls.deny_queues();
        warnings.push(format!(
            "server {} denies the queue of waiters (sorted sets), so processes are not served in order",
            node.address()
        ));
    }
    let tried = async {
        found?;
        let left = prepare(&inner.calls, inner.topology.counters(node)).await?;
        let outcome = try_scripts(inner, at).await;
        if inner.calls.names.of_redisson {
            // Redisson's counter has no TTL. An error of the trial is more useful than one of this.
            let mut forget = redis::cmd("DEL");
            let forgotten = connection
                .query(forget.arg(at.fence()), Resend::Repeatable)
                .await;
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
            "server {} is new, restarted or lost its data; no grants for another {left:?}",
            node.address()
        )),
        Err(error)
            if error.kind() == BackendErrorKind::Unavailable && !error.may_have_taken_effect() =>
        {
            let cause = std::error::Error::source(&error).map(with_causes);
            warnings.push(format!(
                "server {} cannot grant locks now: {}",
                node.address(),
                cause.unwrap_or_default()
            ));
        }
        Err(error) => return Err(failed(error)),
    }
    let channel = inner.calls.names.channel(&key).to_text();
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
        "{acknowledged} of {asked} replicas of the server {address} acknowledged a grant"
    ))
}

/// Returns a key that no process uses and that this node serves.
fn key_at(inner: &Inner, node: &Arc<Node>) -> (LockKey, Route) {
    loop {
        let key = LockKey::from_parts(["self-test", &Uuid::new_v4().to_string()]);
        if let Some(route) = inner.topology.route_at(node, &key) {
            return (key, route);
        }
    }
}

/// Calls every script once.
async fn try_scripts(inner: &Inner, at: KeyRoute<'_>) -> Result<(), BackendError> {
    let calls = &*inner.calls;
    let (key, lease) = (at.key.clone(), LeaseId::new(Uuid::new_v4(), 1));
    // Reads come first: a permission that is missing here leaves nothing behind.
    calls.inspect(at).await?;
    calls.try_out(at, lease, TRIAL_TTL).await?;
    // The script reads a free key only in part.
    let inspected = calls.inspect(at).await;
    let mut granted = Vec::new();
    // With Redisson's counters, acquires share no call.
    if !calls.names.of_redisson {
        let again = [AcquireRequest::new(key.clone(), lease, TRIAL_TTL)];
        granted = calls.acquire_all(at.route, &again).await?;
    }
    let renewal = Renewal::new(key.clone(), lease, TRIAL_TTL);
    let renewed = calls.renew_all(at.route, &[&renewal]).await;
    // The first call keeps the lease and the second releases it.
    let keep = KeepRequest::new(key.clone(), lease, TRIAL_TTL);
    calls.release_or_keep(at, &keep, Some(0), true).await?;
    calls.release_or_keep(at, &keep, None, true).await?;
    let release = Release::new(key, lease);
    let released = calls.release_all(at.route, &[&release]).await;
    // Scripts ignore a message that is denied. The calls above delete no body unless one fails, and send `EVAL` only to a
    // server without the script. These permissions need a command of their own.
    let connection = at.route.connection();
    connection
        .query(&calls.undo_alone(&[&release]), Resend::Compared)
        .await?;
    connection
        .query(&calls.deletion(at), Resend::Repeatable)
        .await?;
    for message in calls.messages(at) {
        connection.query(&message, Resend::Repeatable).await?;
    }
    calls.release_holder(at, &lease.to_string()).await?;
    let mut left = Vec::new();
    if calls.are_queues_allowed() {
        let contend = ContendRequest::new(release.key.clone(), lease, TRIAL_TTL, false);
        calls.try_contend(at, &contend).await?;
        left = calls.leave_all(at.route, &[&release]).await?;
    }
    inspected?;
    granted
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))?;
    renewed?
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))?;
    released?
        .into_iter()
        .chain(left)
        .try_for_each(|outcome| outcome.map(drop))
}

/// Returns the cause if the server is of another kind than the URL says. Its replies to the scripts would
/// not show that. Without the permission to ask, the scripts are tried.
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
    (role != "master").then(|| format!("server (version {version}) is a replica"))
}

/// Returns a warning if the server may evict locks. Without the permission to ask there is none.
async fn eviction(connection: &Arc<Connection>) -> Option<String> {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg("maxmemory-policy");
    let policy = match connection.query(&config, Resend::Repeatable).await {
        Ok(reply) => entry(&reply, "maxmemory-policy")?,
        Err(_denied) => {
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            let reply = connection.query(&info, Resend::Repeatable).await.ok()?;
            let text = text(&reply)?;
            let lines = text.lines();
            let mut policies = lines.filter_map(|line| line.strip_prefix("maxmemory_policy:"));
            policies.next()?.trim().to_owned()
        }
    };
    (policy != "noeviction")
        .then(|| format!("server may evict held locks (maxmemory-policy {policy}): set noeviction"))
}
