//! The server that connections lead to, which can change.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, pending, ready};
use redis::aio::MultiplexedConnection;

use super::target::Target;
use crate::backend::BackendError;

/// A source of the server to connect to.
pub(crate) trait Locate: Send + Sync {
    /// Returns the name of the source for errors and logs.
    fn address(&self) -> &str;

    /// Returns the server to connect to now.
    fn locate(&self) -> BoxFuture<'_, Result<Target, BackendError>>;

    /// Completes with the next server when `address` is no longer the one to connect to.
    fn moved<'a>(&'a self, _address: &'a str) -> BoxFuture<'a, Target> {
        pending().boxed()
    }

    /// Returns `true` if connections must lead elsewhere than to `address`.
    fn has_left(&self, _address: &str) -> bool {
        false
    }

    /// Returns `true` if a redirection of the server names the server itself.
    fn is_named_by(&self, _redirection: &str) -> bool {
        false
    }

    /// Returns `true` if the server can change, so that it must confirm that it is the primary.
    fn can_move(&self) -> bool {
        false
    }

    /// Returns an error if a new connection for commands does not lead to a server of the locks.
    fn check<'a>(
        &'a self,
        _connection: &'a mut MultiplexedConnection,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        ready(Ok(())).boxed()
    }

    /// Called when another server may have one of the channels that are subscribed to at this one, as in a cluster.
    ///
    /// Each channel is subscribed to at the node of its slot. All nodes receive plain messages, but
    /// messages from another node are late: nodes delay small messages to each other by up to 40 ms.
    fn channels_moved(&self) {}

    /// Reports a change of the server as a recovery, for as long as recoveries have subscribers.
    fn look_out(self: Arc<Self>) {}
}

/// A server that never changes.
impl Locate for Target {
    fn address(&self) -> &str {
        &self.address
    }

    fn locate(&self) -> BoxFuture<'_, Result<Target, BackendError>> {
        ready(Ok(self.clone())).boxed()
    }

    fn is_named_by(&self, redirection: &str) -> bool {
        let named = self.redirected(redirection, &self.address);
        named.is_some_and(|named| named.address == self.address)
    }
}
