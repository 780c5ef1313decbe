//! A connection out of the pool for one acquire, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Connection;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::backend::BackendError;
use crate::backend::redis::command::{Fault, Trouble};
use crate::backend::redis::connection::{Link, Shard, without_timeout};
use crate::backend::redis::topology::Acquire;

/// Nobody else's meanwhile. Closed when it is dropped without being given back.
pub(crate) struct Checkout {
    pub(crate) link: Arc<Link>,
    /// The shared connection of the moment.
    pub(crate) shared: Arc<Link>,
    shard: Arc<Shard>,
    /// Goes back to its pool when dropped.
    connection: Option<Connection>,
    /// Behind the connection: the next may come when there is room in the pool again.
    _permit: OwnedSemaphorePermit,
}

impl Checkout {
    pub(crate) fn new(
        connection: Connection,
        shard: &Arc<Shard>,
        shared: Arc<Link>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        // A handle of our own: the settings of the pool's stay as they are.
        let handle = MultiplexedConnection::clone(&connection);
        Self {
            link: Arc::new(Link::new(without_timeout(handle), shared.address.clone())),
            shared,
            shard: Arc::clone(shard),
            connection: Some(connection),
            _permit: permit,
        }
    }

    /// Everything is answered: the next may have it.
    pub(crate) fn give_back(mut self) {
        self.connection = None;
    }

    /// Sends one command behind all that is under way. Then the connection goes back; if there is
    /// no answer within `patience` it is closed, and the command goes over a new one.
    pub(crate) fn settle(self, last: Cmd, asking: bool, patience: Duration) {
        let shard = Arc::clone(&self.shard);
        shard.connector.network.spawner.spawn(async move {
            match timeout(patience, self.link.send(&last, asking)).await {
                // A refusal settles nothing.
                Ok(Ok(Value::ServerError(_)) | Err(_)) | Err(_) => {
                    let shard = Arc::clone(&self.shard);
                    self.close();
                    drop(shard.send(&last, asking).await);
                }
                Ok(Ok(_answer)) => self.give_back(),
            }
        });
    }

    /// Closes it with what it may still carry, and the shared connection for new commands: the server
    /// may have read an acquire here and not executed it yet. A release on a connection that exists
    /// by now could overtake it; one on a connection to come cannot.
    pub(crate) fn close(self) {
        self.shard.discard(&self.shared);
    }

    /// It leads to a server that was replaced, which grants nothing any more.
    pub(crate) fn left_behind(self) -> Fault {
        self.close();
        Fault::Died(BackendError::unknown(Trouble::NotPrimary))
    }

    pub(crate) fn died(self, error: RedisError) -> Fault {
        self.close();
        Fault::Died(BackendError::unknown(error))
    }

    /// No answer in time: gives back what the acquire got, or may still get.
    pub(crate) fn silent(self, acquire: Acquire<'_>, asking: bool, waited: Duration) -> Fault {
        self.shard.doubt(&self.shared);
        self.settle((acquire.undo)(), asking, acquire.ttl + waited);
        Fault::Died(BackendError::unknown(Trouble::NoAnswer(waited)))
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Connection::take(connection));
        }
    }
}
