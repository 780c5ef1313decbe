//! What is asked of a server before the first lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;
use uuid::Uuid;

use super::connect::Connector;
use super::fault::kind_of_connecting;
use super::names::Names;
use super::notify::Notifier;
use super::script;
use super::shard::Shard;
use crate::backend::{BackendError, BackendErrorKind, LeaseId, Renewal};
use crate::{ConnectError, LockKey};

/// Long enough for the trial; a process that dies in it leaves nothing behind.
const TRIAL_TTL: Duration = Duration::from_secs(1);

/// Opens every connection and runs every script; returns what is worth a warning.
///
/// Bounded by its parts: the connect timeout for the connections and again for the trial of the
/// subscription, the response timeout for each command. One deadline for all of it would take a
/// server far away for one that is down.
pub(super) async fn self_test(
    shards: &[Arc<Shard>],
    names: &Names,
    notifier: &Notifier,
    connector: &Connector,
) -> Result<Vec<String>, ConnectError> {
    let failed = |error: BackendError| connect_error(&connector.address, error);
    try_join_all(shards.iter().map(Shard::await_link))
        .await
        .map_err(failed)?;
    let shard = &shards[0];

    let key = LockKey::from_parts(["self-test", &Uuid::new_v4().to_string()]);
    let mut warnings = Vec::new();
    match try_scripts(shard, names, &key).await {
        Ok(()) => {}
        Err(error)
            if error.kind() == BackendErrorKind::Unavailable && !error.may_have_taken_effect() =>
        {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            warnings.push(format!(
                "the server cannot take locks at the moment: {}",
                cause.unwrap_or_default()
            ));
        }
        Err(error) => return Err(failed(error)),
    }
    let subscribed = notifier.try_out(&names.channel(&key).to_text()).await;
    subscribed.map_err(|error| {
        let address = notifier.address().unwrap_or_default();
        let error = BackendError::refused(kind_of_connecting(&error), error);
        connect_error(address, error)
    })?;

    warnings.extend(replica(shard).await);
    warnings.extend(eviction(shard).await);
    #[cfg(feature = "tracing")]
    for warning in &warnings {
        tracing::warn!(address = connector.address, "{warning}");
    }
    Ok(warnings)
}

/// Every script once, on a key that is nobody else's.
async fn try_scripts(shard: &Arc<Shard>, names: &Names, key: &LockKey) -> Result<(), BackendError> {
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    // Reads first: a permission that is missing here costs nothing yet.
    script::inspect(shard, names, key).await?;
    script::acquire(shard, names, key, lease, TRIAL_TTL).await?;
    let renewal = Renewal::new(key.clone(), lease, TRIAL_TTL);
    let renewed = script::renew(shard, names, &[&renewal]).await;
    // Asked to keep, then asked to release: both of its branches.
    script::pass(shard, names, key, lease, TRIAL_TTL, Some(0)).await?;
    script::pass(shard, names, key, lease, TRIAL_TTL, None).await?;
    let released = script::release(shard, names, &[&(key.clone(), lease)]).await;
    // Scripts get over a message that may not be sent, and `EVAL` is for bad times only: what they
    // need is asked for by itself.
    script::plain(shard, &script::undo(names, key, lease)).await?;
    script::plain(shard, &script::publish(names, key)).await?;
    script::force_release(shard, names, key).await?;
    renewed
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))?;
    released
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))
}

/// `HELLO` says the role to those who may not ask for `INFO`; before 6.0 it does not exist.
async fn replica(shard: &Arc<Shard>) -> Option<String> {
    let answer = script::plain(shard, &redis::cmd("HELLO")).await.ok()?;
    let version = entry(&answer, "version");
    let mode = entry(&answer, "mode")?;
    let role = entry(&answer, "role")?;
    let version = version.unwrap_or_default();
    if mode == "cluster" {
        Some(format!(
            "the server (version {version}) is a node of a cluster"
        ))
    } else if role != "master" {
        Some(format!("the server (version {version}) is a replica"))
    } else {
        None
    }
}

/// A server that evicts keys evicts locks. Where the ACL hides the policy there is no warning.
async fn eviction(shard: &Arc<Shard>) -> Option<String> {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg("maxmemory-policy");
    let policy = match script::plain(shard, &config).await {
        Ok(answer) => entry(&answer, "maxmemory-policy")?,
        Err(_denied) => {
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            let answer = script::plain(shard, &info).await.ok()?;
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
fn entry(answer: &Value, name: &str) -> Option<String> {
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

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn connect_error(address: &str, error: BackendError) -> ConnectError {
    let address = address.to_owned();
    let source = Arc::new(error);
    match source.kind() {
        BackendErrorKind::Unavailable => ConnectError::Unreachable { address, source },
        _ => ConnectError::Refused { address, source },
    }
}
