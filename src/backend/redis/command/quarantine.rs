//! No grants for a while after a server came back without its data.
//!
//! Whoever held a lock then does not know yet that it is gone. The acquire script notices the loss by
//! itself. In a cluster each slot has a counter of its own, and one that was never used looks like
//! one that was lost: so all of a node's slots are looked at together, when a backend connects and
//! when the first of them is found lost. Otherwise each would have its quarantine at its first
//! use, long after everybody else's.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use redis::Value;

use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::backend::Inner;
use crate::backend::redis::command::{
    Cause, Names, Script, answered, millis, remaining, unexpected,
};
use crate::backend::redis::topology::{Cluster, Node, Route, Topology};

/// How many slots of a node are asked for at a time: its connection is shared with all others.
const AT_A_TIME: usize = 256;

/// Grants pause for so long after a loss of data.
pub(crate) struct Quarantine {
    pub(crate) period: Duration,
    pub(crate) prepare: Script,
}

impl Quarantine {
    /// Begins if the data of the route is lost; what is left of it.
    async fn prepare(&self, route: &Route, names: &Names) -> Result<Duration, BackendError> {
        let mut command = self.prepare.evalsha(2, 1, 128);
        command.arg(names.fence(route.slot()));
        command.arg(names.quarantine(route.slot()));
        command.arg(millis(self.period));
        match answered(self.prepare.call(route, &command).await)? {
            Value::Int(left) => Ok(remaining(left)),
            answer => Err(unexpected(&answer)),
        }
    }

    /// Whether it began with this refusal.
    fn began_with(&self, refusal: &BackendError) -> bool {
        let Some(Cause::Quarantine(left)) = Cause::behind(refusal) else {
            return false;
        };
        left.as_millis() >= millis(self.period).into()
    }
}

/// Begins the quarantine wherever a node has lost its data. How long the longest one lasts still.
///
/// # Cancel safety
///
/// May be repeated.
pub(crate) async fn prepare(
    inner: &Inner,
    node: &Node,
    cluster: Option<&Arc<Cluster>>,
) -> Result<Duration, BackendError> {
    let names = &inner.names;
    let Some(quarantine) = &inner.scripts.quarantine else {
        return Ok(Duration::ZERO);
    };
    let Some(cluster) = cluster else {
        let route = Route::alone(&node.connections[0]);
        return quarantine.prepare(&route, names).await;
    };
    // Only says which connection of a node it is.
    let key = &LockKey::new("quarantine");
    let slots = cluster.slots_of(node).into_iter().map(|slot| async move {
        let route = Route::in_cluster(node.connection(key), cluster, key, slot);
        quarantine.prepare(&route, names).await
    });
    let longest = |one: Duration, other| std::future::ready(Ok(one.max(other)));
    let answers = stream::iter(slots).buffer_unordered(AT_A_TIME);
    answers.try_fold(Duration::ZERO, longest).await
}

/// After a refusal for `key`: if a quarantine began with it, looks at the other slots of its node, too.
pub(crate) fn spread(inner: &Arc<Inner>, key: &LockKey, refusal: &BackendError) {
    let Topology::Cluster(cluster) = &inner.topology else {
        return;
    };
    let quarantine = inner.scripts.quarantine.as_ref();
    if !quarantine.is_some_and(|quarantine| quarantine.began_with(refusal)) {
        return;
    }
    let Some(node) = cluster.owner(inner.names.slot(key)) else {
        return;
    };
    if node.preparing.swap(true, Ordering::SeqCst) {
        return;
    }
    let preparing = Preparing(node);
    let (inner, cluster) = (Arc::clone(inner), Arc::clone(cluster));
    let network = Arc::clone(&inner.network);
    network.spawner.spawn(async move {
        // What fails here begins with the next acquire.
        drop(prepare(&inner, &preparing.0, Some(&cluster)).await);
    });
}

/// Says that it is over, also when the task goes down with its runtime.
struct Preparing(Arc<Node>);

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.preparing.store(false, Ordering::SeqCst);
    }
}
