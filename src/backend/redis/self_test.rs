//! Checks of the servers before the first lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join, join_all, join3, try_join, try_join_all};
use futures_util::{FutureExt as _, TryFutureExt as _};
use redis::Value;
use uuid::Uuid;

use super::command::{Cause, KeyRoute, Outcomes, entry, is_reply, prepare, text};
use super::connection::{Connection, Resend};
use super::inner::Inner;
use super::topology::{Node, Route, connect_error};
use crate::backend::{
    AcquireRequest, BackendError, BackendErrorKind, KeepRequest, LeaseId, Release, Renewal,
};
use crate::error::with_causes;
use crate::{ConfigError, ConnectError, LockKey};

/// The TTL of the trial's lock, which expires if the process dies.
const TRIAL_TTL: Duration = Duration::from_secs(1);

/// Opens all connections and calls every script at every node. Returns the warnings.
///
/// Each part has its own limit: the connect timeout for each connection, the response timeout for each command. With a
/// single deadline, a distant server would seem unavailable.
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
    log(inner, &warnings);
    Ok(warnings)
}

/// Does the same after the backend was created. An error is a warning.
pub(crate) async fn self_test_later(inner: &Inner) {
    let warnings = self_test(inner).await.unwrap_or_else(|error| {
        let warnings = vec![with_causes(&error)];
        // The connection logs its outage.
        if !matches!(error, ConnectError::Unreachable { .. }) {
            log(inner, &warnings);
        }
        warnings
    });
    drop(inner.warnings.set(warnings));
}

fn log(inner: &Inner, warnings: &[String]) {
    #[cfg(feature = "tracing")]
    for warning in warnings {
        tracing::warn!(address = inner.address, %warning, "lock backend self-test warning");
    }
    #[cfg(not(feature = "tracing"))]
    let _unused_without_feature = (inner, warnings);
}

async fn test_node(inner: &Inner, node: &Arc<Node>) -> Result<Vec<String>, ConnectError> {
    let (key, route) = key_at(inner, node);
    let channel = inner.calls.names.channel(&key).to_text();
    let subscribed = node.notifier.try_out(&channel).map(Ok);
    // Concurrent, and an error of the commands does not wait for the subscription.
    let (warnings, subscribed) =
        try_join(test_commands(inner, node, &key, route), subscribed).await?;
    subscribed.map_err(|error| connect_error(node.notifier.address(), error))?;
    Ok(warnings)
}

/// Sends commands together that do not depend on each other: a distant server takes long for each round trip.
async fn test_commands(
    inner: &Inner,
    node: &Arc<Node>,
    key: &LockKey,
    mut route: Route,
) -> Result<Vec<String>, ConnectError> {
    let failed = |error: BackendError| connect_error(node.address(), error);
    try_join_all(node.connections.iter().map(|connection| async move {
        let link = connection.await_link().await?;
        connection.granting(link).await
    }))
    .await
    .map_err(failed)?;

    // The connections have found whether the server is sharded.
    if let Some(found) = inner.topology.route_at(node, key) {
        route = found;
    }
    let connection = &node.connections[0];
    let calls = &*inner.calls;
    // Unlike `INFO`, `HELLO` reports the role without a permission.
    let hello = redis::cmd("HELLO");
    let (hello, are_queues_denied, eviction) = join3(
        connection.query(&hello, Resend::Repeatable),
        calls.are_queues_denied(calls.at(&route, key)),
        eviction(connection),
    )
    .await;
    let hello = match hello {
        Err(silent) if !is_reply(&silent) => return Err(failed(silent)),
        hello => hello.ok(),
    };
    if let Some(cause) = mistaken(hello.as_ref(), inner.topology.is_cluster()) {
        let error = BackendError::refused(BackendErrorKind::Misconfigured, cause);
        return Err(failed(error));
    }
    let mut warnings = Vec::new();
    if are_queues_denied {
        calls.deny_queues();
        warnings.push(format!(
            "server {} denies the queue of waiters (sorted sets), so processes are not served in order",
            node.address()
        ));
    }

    let at = calls.at(&route, key);
    let tried = async {
        let left = prepare(calls, inner.topology.counters(node)).await?;
        let outcome = try_all(inner, node, at).await;
        if calls.names.of_redisson {
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
            if error.kind() == BackendErrorKind::Unavailable
                && !error.may_have_taken_effect()
                && is_reply(&error) =>
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
    warnings.extend(replica(hello.as_ref()));
    warnings.extend(eviction);
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

/// Calls every script, and acquires another key for which replicas acknowledge the grant.
async fn try_all(inner: &Inner, node: &Arc<Node>, at: KeyRoute<'_>) -> Result<(), BackendError> {
    let acknowledged = async {
        if inner.min_replicas.is_none() {
            return Ok(());
        }
        let (key, route) = key_at(inner, node);
        let at = inner.calls.at(&route, &key).in_self_test();
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let request = AcquireRequest::new(key.clone(), lease, TRIAL_TTL);
        inner.calls.acquire(at, &request).await?;
        let release = Release::new(key.clone(), lease);
        all(inner.calls.release_all(&route, &[&release]).await)
    };
    // A grant that waits for replicas has a connection of its own, so its order among the calls is open.
    let route = at.route.without_replicas();
    let at = inner.calls.at(&route, at.key).in_self_test();
    let scripts = async {
        // If the server lacks some of the scripts, the calls of these follow the others. The second time it has all
        // of them, and each call meets what the one before it leaves.
        try_scripts(inner, at).await?;
        try_scripts(inner, at).await
    };
    let (scripts, acknowledged) = join(scripts, acknowledged).await;
    scripts.and(acknowledged)
}

/// Calls every script once. All calls are in flight together, in this order over one connection.
async fn try_scripts(inner: &Inner, at: KeyRoute<'_>) -> Result<(), BackendError> {
    let calls = &*inner.calls;
    let (key, lease) = (at.key.clone(), LeaseId::new(Uuid::new_v4(), 1));
    let connection = at.route.connection();
    let acquires = [AcquireRequest::new(key.clone(), lease, TRIAL_TTL)];
    let [acquire] = &acquires;
    let renewals = [&Renewal::new(key.clone(), lease, TRIAL_TTL)];
    let keeps = [&KeepRequest::new(key.clone(), lease, TRIAL_TTL)];
    let releases = [&Release::new(key.clone(), lease)];
    let holder = lease.to_string();
    // Scripts ignore a message that is denied. The calls delete no body unless one fails, and send `EVAL` only to a
    // server without the script. These permissions need a command of their own.
    let commands: Vec<_> = [calls.deletion(at), calls.undo_alone(&releases)]
        .into_iter()
        .chain(calls.messages(at))
        .collect();
    let commands = commands.iter().map(|command| {
        let sent = connection.query(command, Resend::Compared);
        sent.map_ok(drop).boxed()
    });
    let mut trials: Vec<BoxFuture<'_, Result<(), BackendError>>> = commands.collect();
    trials.extend([
        calls.inspect(at).map_ok(drop).boxed(),
        calls.acquire(at, acquire).map_ok(drop).boxed(),
        // The script reads a free key only in part.
        calls.inspect(at).map_ok(drop).boxed(),
    ]);
    // With Redisson's counters, acquires share no call.
    if !calls.names.of_redisson {
        trials.push(calls.acquire_all(at.route, &acquires).map(all).boxed());
    }
    trials.extend([
        calls.renew_all(at.route, &renewals).map(all).boxed(),
        calls.release_or_keep(at.route, &keeps).map(all).boxed(),
        calls.release_all(at.route, &releases).map(all).boxed(),
    ]);
    let forced = calls.release_by_force(at, &holder, true);
    trials.push(forced.map_ok(drop).boxed());
    if calls.are_queues_allowed() {
        trials.push(calls.contend(at, acquire).map_ok(drop).boxed());
        trials.push(calls.leave_all(at.route, &releases).map(all).boxed());
    }
    join_all(trials).await.into_iter().collect()
}

/// Returns the first error of a call.
fn all<T>(outcomes: Outcomes<T>) -> Result<(), BackendError> {
    outcomes?.into_iter().try_for_each(|it| it.map(drop))
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
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let reply = connection.query(&info, Resend::Repeatable).await.ok()?;
    let text = text(&reply)?;
    let mut lines = text.lines();
    let policy = lines.find_map(|line| line.strip_prefix("maxmemory_policy:"))?;
    (policy != "noeviction")
        .then(|| format!("server may evict held locks (maxmemory-policy {policy}): set noeviction"))
}
