//! Where the commands for a key go.

use std::sync::Arc;

use futures_util::FutureExt as _;
use redis::{Cmd, Value};

use crate::LockKey;
use crate::backend::redis::command::{Fault, Trouble};
use crate::backend::redis::connection::{Outage, Shard};
use crate::backend::redis::topology::{Acquire, Cluster, Node};
use crate::backend::{BackendError, BackendErrorKind};

/// How many times one command follows the slot.
const REDIRECTIONS: usize = 5;

/// What a backend commands.
pub(crate) enum Topology {
    Single(Node),
    Cluster(Arc<Cluster>),
}

/// A connection, and in a cluster the way to the node that has the slot by now.
#[derive(Clone)]
pub(crate) struct Place {
    shard: Arc<Shard>,
    roaming: Option<Roaming>,
}

#[derive(Clone)]
struct Roaming {
    cluster: Arc<Cluster>,
    key: LockKey,
    slot: u16,
}

impl Place {
    pub(crate) fn alone(shard: &Arc<Shard>) -> Self {
        Self {
            shard: Arc::clone(shard),
            roaming: None,
        }
    }

    pub(crate) fn in_cluster(
        shard: &Arc<Shard>,
        cluster: &Arc<Cluster>,
        key: &LockKey,
        slot: u16,
    ) -> Self {
        Self {
            shard: Arc::clone(shard),
            roaming: Some(Roaming {
                cluster: Arc::clone(cluster),
                key: key.clone(),
                slot,
            }),
        }
    }

    /// In a cluster.
    pub(crate) fn slot(&self) -> Option<u16> {
        self.roaming.as_ref().map(|roaming| roaming.slot)
    }

    /// What can go in one call: the same connection, and in a cluster the same slot.
    pub(crate) fn group(&self) -> (u64, u16) {
        (self.connection(), self.slot().unwrap_or(0))
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// That the server of the place grants nothing.
    pub(crate) fn outage(&self) -> &Outage {
        &self.shard.connector.outage
    }

    /// Which connection it is.
    pub(crate) fn connection(&self) -> u64 {
        self.shard.id()
    }

    /// Sends one command and waits for its answer, as [`Shard::send`] does, at each node that it
    /// is sent on to.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, Fault> {
        let send = |shard: Arc<Shard>, asking| async move { shard.send(command, asking).await };
        self.follow(send).await
    }

    /// Sends by `send` to the node of the place, and in a cluster to each that it is sent on to:
    /// with whether the command has to ask its way in, ahead of its slot.
    async fn follow<F>(&self, send: impl Fn(Arc<Shard>, bool) -> F) -> Result<Value, Fault>
    where
        F: Future<Output = Result<Value, Fault>>,
    {
        let Some(roaming) = &self.roaming else {
            return match send(Arc::clone(&self.shard), false).await {
                // A node of a cluster that was given as if it were alone.
                Err(Fault::Elsewhere { resent, .. }) => {
                    let kind = BackendErrorKind::Misconfigured;
                    let error = BackendError::refused(kind, Trouble::Elsewhere);
                    Err(Fault::Refused(error).after(resent))
                }
                outcome => outcome,
            };
        };
        let mut shard = Arc::clone(&self.shard);
        let (mut asking, mut resent) = (false, false);
        for _ in 0..REDIRECTIONS {
            let mut outcome = send(Arc::clone(&shard), asking).await;
            outcome = outcome.map_err(|fault| fault.after(resent));
            let Err(Fault::Elsewhere {
                address,
                asking: ask,
                resent: again,
            }) = &outcome
            else {
                if is_doubtful(&outcome) {
                    roaming.cluster.doubt();
                }
                return outcome;
            };
            asking = *ask;
            resent = *again;
            let moved = (!asking).then_some(roaming.slot);
            let node = roaming.cluster.redirected(address, shard.address(), moved);
            let Some(node) = node else { return outcome };
            shard = Arc::clone(node.shard(&roaming.key));
        }
        roaming.cluster.doubt();
        Err(Fault::unavailable(Trouble::Elsewhere).after(resent))
    }
}

impl Place {
    /// As [`send`](Self::send), and where replicas have to acknowledge a grant, as
    /// [`Replicas::acquire`](super::Replicas::acquire).
    pub(crate) async fn acquire(&self, acquire: Acquire<'_>) -> Result<Value, Fault> {
        let acquire = |shard: Arc<Shard>, asking| async move {
            match &shard.connector.replicas {
                // Boxed, so that those who wait for no replicas do not carry it along.
                Some(replicas) => replicas.acquire(&shard, acquire, asking).boxed().await,
                None => shard.send(acquire.command, asking).await,
            }
        };
        self.follow(acquire).await
    }
}

/// Whether it may be that another node serves the slot by now.
fn is_doubtful(outcome: &Result<Value, Fault>) -> bool {
    match outcome {
        Err(Fault::Refused(error) | Fault::Unsent(error)) => {
            error.kind() == BackendErrorKind::Unavailable
        }
        Err(Fault::Died(_) | Fault::NoAnswer(_)) => true,
        _ => false,
    }
}
