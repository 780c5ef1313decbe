//! A pause of all grants after a server restarted or lost its data.
//!
//! The holders of lost locks do not notice the loss at once. The acquire script detects it by two signs:
//!
//! - The server process is younger than the quarantine. It may have loaded a snapshot without the last grants.
//! - The counter is missing, as after `FLUSHALL` or at an empty replica.
//!
//! The first sign ends with its pause and needs no record. The second one needs a record. In a cluster, each slot
//! has a counter, and a counter that was never used looks lost. Hence all slots of a node are checked together: when
//! a backend connects, and when the first of them is found lost. Otherwise each slot would begin its quarantine at
//! its first use, long after the loss.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use redis::Value;

use super::call::Calls;
use super::error::{Cause, CommandError, unexpected};
use super::names::millis;
use super::reply::remaining;
use super::send::call;
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::topology::{Route, Routes, Topology};
use crate::task::Background;

/// The most concurrent checks at a node, whose connection serves other commands as well.
const AT_A_TIME: usize = 256;

/// Begins the quarantine of each lost counter, and returns the rest of the longest one.
///
/// # Cancel safety
///
/// If dropped, some counters are unchecked. It may be repeated.
pub(crate) async fn prepare(calls: &Calls, counters: Routes) -> Result<Duration, BackendError> {
    if calls.quarantine_millis().is_none() {
        return Ok(Duration::ZERO);
    }
    let checks = counters.map(|route| async move { calls.prepare(&route).await });
    let longest = |one: Duration, other| std::future::ready(Ok(one.max(other)));
    let checks = stream::iter(checks).buffer_unordered(AT_A_TIME);
    checks.try_fold(Duration::ZERO, longest).await
}

impl Calls {
    /// Begins a quarantine if the counter of the route is lost, and returns the rest of the quarantine.
    async fn prepare(&self, route: &Route) -> Result<Duration, BackendError> {
        // All keys of a slot share its counter.
        let key = LockKey::new("any");
        let (at, script) = (self.at(route, &key), &self.scripts.prepare);
        let mut command = script.evalsha(2, 1, 128);
        command.arg(at.fence()).arg(at.quarantine()).arg(at.period);
        match call(script, route, &command).await {
            Err(CommandError::Scattered(_)) => {
                let (_, left) = self.counter(at).await?;
                Ok(left)
            }
            reply => match reply?.value {
                Value::Int(left) => Ok(remaining(left)),
                reply => Err(unexpected(&reply)),
            },
        }
    }

    /// Returns the length of a quarantine in milliseconds.
    pub(crate) fn quarantine_millis(&self) -> Option<u64> {
        self.scripts.quarantine.map(millis)
    }
}

/// If a quarantine began with this rejection for `key`, checks the other slots of its node.
pub(crate) fn spread_quarantine(
    calls: &Arc<Calls>,
    topology: &dyn Topology,
    key: &LockKey,
    rejection: Option<&BackendError>,
) {
    let Some(Cause::Quarantine(left)) = rejection.and_then(Cause::behind) else {
        return;
    };
    // One that has begun has its full length.
    let has_begun = |period: u64| left.as_millis() >= period.into();
    let begins = calls.quarantine_millis().is_some_and(has_begun);
    // A route without a slot has one counter.
    let route = topology.route(key).ok();
    let Some(route) = route.filter(|route| begins && route.slot().is_some()) else {
        return;
    };
    let Some(running) = route.node().preparing.start() else {
        return;
    };
    let counters = topology.counters(route.node());
    let calls = Arc::clone(calls);
    Background.spawn(async move {
        // A counter whose check fails begins its quarantine with the next acquire.
        drop(prepare(&calls, counters).await);
        drop(running);
    });
}
