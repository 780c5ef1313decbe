//! A connection out of the pool for one acquire, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Connection as Pooled;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, CommandError};
use crate::backend::redis::connection::{Connection, Link, without_timeout};
use crate::backend::redis::topology::Acquire;

/// Nobody else's meanwhile. Closed when it is dropped without being given back.
pub(crate) struct Checkout {
    pub(crate) link: Arc<Link>,
    /// The shared connection of the moment.
    pub(crate) shared: Arc<Link>,
    connection: Arc<Connection>,
    /// Goes back to its pool when dropped.
    pooled: Option<Pooled>,
    /// Behind the connection: the next may come when there is room in the pool again.
    _permit: OwnedSemaphorePermit,
}

impl Checkout {
    pub(crate) fn new(
        pooled: Pooled,
        connection: &Arc<Connection>,
        shared: Arc<Link>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        // A handle of our own: the settings of the pool's stay as they are.
        let handle = MultiplexedConnection::clone(&pooled);
        Self {
            link: Arc::new(Link::new(without_timeout(handle), shared.address.clone())),
            shared,
            connection: Arc::clone(connection),
            pooled: Some(pooled),
            _permit: permit,
        }
    }

    /// Everything is answered: the next may have it.
    pub(crate) fn give_back(mut self) {
        self.pooled = None;
    }

    /// Sends one command behind all that is under way. Then the connection goes back; if there is
    /// no answer within `patience` it is closed, and the command goes over a new one.
    pub(crate) fn settle(self, last: Cmd, asking: bool, patience: Duration) {
        let connection = Arc::clone(&self.connection);
        connection.connector.network.spawner.spawn(async move {
            match timeout(patience, self.link.send(&last, asking)).await {
                // A refusal settles nothing.
                Ok(Ok(Value::ServerError(_)) | Err(_)) | Err(_) => {
                    let connection = Arc::clone(&self.connection);
                    self.close();
                    drop(connection.send(&last, asking).await);
                }
                Ok(Ok(_answer)) => self.give_back(),
            }
        });
    }

    /// Closes it with what it may still carry, and the shared connection for new commands: the server
    /// may have read an acquire here and not executed it yet. A release on a connection that exists
    /// by now could overtake it; one on a connection to come cannot.
    pub(crate) fn close(self) {
        self.connection.discard(&self.shared);
    }

    /// It leads to a server that was replaced, which grants nothing any more.
    pub(crate) fn left_behind(self) -> CommandError {
        self.close();
        CommandError::Died(BackendError::unknown(Cause::NotPrimary))
    }

    pub(crate) fn died(self, error: RedisError) -> CommandError {
        self.close();
        CommandError::Died(BackendError::unknown(error))
    }

    /// No answer in time: gives back what the acquire got, or may still get.
    pub(crate) fn silent(
        self,
        acquire: Acquire<'_>,
        asking: bool,
        waited: Duration,
    ) -> CommandError {
        self.connection.mark_suspect(&self.shared);
        self.settle((acquire.undo)(), asking, acquire.ttl + waited);
        CommandError::Died(BackendError::unknown(Cause::NoAnswer(waited)))
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(pooled) = self.pooled.take() {
            drop(Pooled::take(pooled));
        }
    }
}
