//! Where the commands for a key go.

use std::sync::Arc;

use futures_util::FutureExt as _;
use redis::{Cmd, Value};

use crate::LockKey;
use crate::backend::redis::command::{Cause, CommandError};
use crate::backend::redis::connection::{Connection, Outage};
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
pub(crate) struct Route {
    connection: Arc<Connection>,
    roaming: Option<Roaming>,
}

#[derive(Clone)]
struct Roaming {
    cluster: Arc<Cluster>,
    key: LockKey,
    slot: u16,
}

impl Route {
    pub(crate) fn alone(connection: &Arc<Connection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            roaming: None,
        }
    }

    pub(crate) fn in_cluster(
        connection: &Arc<Connection>,
        cluster: &Arc<Cluster>,
        key: &LockKey,
        slot: u16,
    ) -> Self {
        Self {
            connection: Arc::clone(connection),
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
        (self.connection_id(), self.slot().unwrap_or(0))
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// That the server of the route grants nothing.
    pub(crate) fn outage(&self) -> &Outage {
        &self.connection.connector.outage
    }

    /// Which connection it is.
    pub(crate) fn connection_id(&self) -> u64 {
        self.connection.id()
    }

    /// Sends one command and waits for its answer, as [`Connection::send`] does, at each node that it
    /// is sent on to.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, CommandError> {
        let send = |connection: Arc<Connection>, asking| async move {
            connection.send(command, asking).await
        };
        self.follow(send).await
    }

    /// Sends by `send` to the node of the route, and in a cluster to each that it is sent on to:
    /// with whether the command has to ask its way in, ahead of its slot.
    async fn follow<F>(
        &self,
        send: impl Fn(Arc<Connection>, bool) -> F,
    ) -> Result<Value, CommandError>
    where
        F: Future<Output = Result<Value, CommandError>>,
    {
        let Some(roaming) = &self.roaming else {
            return match send(Arc::clone(&self.connection), false).await {
                // A node of a cluster that was given as if it were alone.
                Err(CommandError::Elsewhere { resent, .. }) => {
                    let kind = BackendErrorKind::Misconfigured;
                    let error = BackendError::refused(kind, Cause::Elsewhere);
                    Err(CommandError::Refused(error).after(resent))
                }
                outcome => outcome,
            };
        };
        let mut connection = Arc::clone(&self.connection);
        let (mut asking, mut resent) = (false, false);
        for _ in 0..REDIRECTIONS {
            let mut outcome = send(Arc::clone(&connection), asking).await;
            outcome = outcome.map_err(|fault| fault.after(resent));
            let Err(CommandError::Elsewhere {
                address,
                asking: ask,
                resent: again,
            }) = &outcome
            else {
                if is_doubtful(&outcome) {
                    roaming.cluster.mark_suspect();
                }
                return outcome;
            };
            asking = *ask;
            resent = *again;
            let moved = (!asking).then_some(roaming.slot);
            let node = roaming
                .cluster
                .redirected(address, connection.address(), moved);
            let Some(node) = node else { return outcome };
            connection = Arc::clone(node.connection(&roaming.key));
        }
        roaming.cluster.mark_suspect();
        Err(CommandError::unavailable(Cause::Elsewhere).after(resent))
    }
}

impl Route {
    /// As [`send`](Self::send), and where replicas have to acknowledge a grant, as
    /// [`Replicas::acquire`](super::Replicas::acquire).
    pub(crate) async fn acquire(&self, acquire: Acquire<'_>) -> Result<Value, CommandError> {
        let acquire = |connection: Arc<Connection>, asking| async move {
            match &connection.connector.replicas {
                // Boxed, so that those who wait for no replicas do not carry it along.
                Some(replicas) => replicas.acquire(&connection, acquire, asking).boxed().await,
                None => connection.send(acquire.command, asking).await,
            }
        };
        self.follow(acquire).await
    }
}

/// Whether it may be that another node serves the slot by now.
fn is_doubtful(outcome: &Result<Value, CommandError>) -> bool {
    match outcome {
        Err(CommandError::Refused(error) | CommandError::Unsent(error)) => {
            error.kind() == BackendErrorKind::Unavailable
        }
        Err(CommandError::Died(_) | CommandError::NoAnswer(_)) => true,
        _ => false,
    }
}
