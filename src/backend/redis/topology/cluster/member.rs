//! A node of the cluster, as a server to connect to.

use std::sync::Weak;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;

use super::map::parse;
use super::nodes::Cluster;
use super::refresh::{host_of, question};
use crate::backend::BackendError;
use crate::backend::redis::command::not_connected;
use crate::backend::redis::connection::{Locate, Target};

/// The server at the address of a node, which must still belong to the cluster.
pub(super) struct Member {
    pub(super) target: Target,
    pub(super) cluster: Weak<Cluster>,
}

/// The server at an address never changes.
impl Locate for Member {
    fn address(&self) -> &str {
        self.target.address()
    }

    fn locate(&self) -> BoxFuture<'_, Result<Target, BackendError>> {
        self.target.locate()
    }

    fn is_named_by(&self, redirection: &str) -> bool {
        self.target.is_named_by(redirection)
    }

    fn channels_moved(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.mark_suspect();
        }
    }

    fn check<'a>(
        &'a self,
        connection: &'a mut MultiplexedConnection,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        async move {
            let reply = connection.send_packed_command(&question()).await;
            let reply = reply.map_err(not_connected)?;
            // A node without slots, or that is loading, rejects all commands for keys.
            let view = parse(&reply, host_of(self.address()));
            match (view, self.cluster.upgrade()) {
                (Some(view), Some(cluster)) if !cluster.identity.shares(&view.ids) => {
                    cluster.replaced_by(&view)
                }
                _ => Ok(()),
            }
        }
        .boxed()
    }
}
