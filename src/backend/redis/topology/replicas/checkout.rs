//! A pooled connection for one acquire.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Connection as Pooled;
use redis::Cmd;
use redis::aio::MultiplexedConnection;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, CommandError};
use crate::backend::redis::connection::{Connection, Link, Undo, Visit, without_timeout};
use crate::task::Background;

/// A connection that only one acquire uses. Closed when it is dropped before
/// [`put_back`](Self::put_back).
pub(super) struct Checkout {
    pub(super) link: Arc<Link>,
    /// The shared link at the time of the checkout.
    pub(super) shared: Arc<Link>,
    connection: Arc<Connection>,
    /// Returns to its pool when dropped.
    pooled: Option<Pooled>,
}

impl Checkout {
    pub(super) fn new(
        (pooled, visit): (Pooled, Visit),
        connection: &Arc<Connection>,
        shared: Arc<Link>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        // A clone: the settings of the pool's own handle stay.
        let handle = MultiplexedConnection::clone(&pooled);
        Self {
            link: Arc::new(Link::new(
                without_timeout(handle),
                shared.address.clone(),
                visit,
                // Its end shows at its next command.
                Arc::default(),
                permit,
            )),
            shared,
            connection: Arc::clone(connection),
            pooled: Some(pooled),
        }
    }

    /// Returns the connection to the pool, unless it may lead to a wrong server. No command may be in flight.
    pub(super) fn put_back(mut self) {
        if !self.link.visit.is_doubtful() {
            self.pooled = None;
        }
    }

    /// Sends the commands of an undo behind all that are in flight, and returns the connection to the pool after
    /// the reply. Without a reply within `limit`, the connection is closed and the commands are sent over a
    /// new one.
    pub(super) fn settle(self, last: Vec<Cmd>, asking: bool, limit: Duration) {
        Background.spawn(async move {
            match timeout(limit, self.link.undo(&last, asking)).await {
                // A rejection settles nothing.
                Ok(Err(_)) | Err(_) => {
                    let connection = Arc::clone(&self.connection);
                    self.close();
                    drop(connection.send_undo(&last, asking).await);
                }
                Ok(Ok(())) => self.put_back(),
            }
        });
    }

    /// Closes the connection with all that is in flight, and the shared link.
    ///
    /// The server may have read an acquire here that it did not execute yet. A release on an existing
    /// link could overtake that acquire. A release on a new link cannot.
    pub(super) fn close(self) {
        self.connection.discard(&self.shared);
    }

    /// Closes the connections, and returns the error of a grant that they may have.
    pub(super) fn died(self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> CommandError {
        self.close();
        CommandError::Died(BackendError::unknown(cause))
    }

    /// Returns the error of a missing reply, and undoes the acquire, which may still be granted. The undo waits for
    /// up to `behind` longer, for the commands before it.
    pub(super) fn silent(
        self,
        undo: Undo<'_>,
        asking: bool,
        waited: Duration,
        behind: Duration,
    ) -> CommandError {
        self.connection.mark_suspect(&self.shared);
        // The limit of the undo is the length of the lease. Acquires without a reply would take every checkout for it.
        let limit = undo.limit.min(self.connection.probe_limit());
        self.settle((undo.commands)(), asking, limit + behind);
        CommandError::Died(BackendError::unknown(Cause::NoReply(waited)))
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(pooled) = self.pooled.take() {
            drop(Pooled::take(pooled));
        }
    }
}
