//! One sentinel, and the question that it is asked.

use std::sync::Arc;

use redis::Value;

use super::votes::{Named, SentinelReply};
use crate::backend::redis::command::{entry, is_reply, unexpected};
use crate::backend::redis::connection::{
    ClientContext, Connection, Connector, Origin, Resend, Target, in_background,
};

/// A sentinel and the connection to it, which is kept for the next question.
pub(super) struct Sentinel {
    connection: Arc<Connection>,
}

impl Sentinel {
    pub(super) fn new(target: Target, context: Arc<ClientContext>) -> Self {
        let connector = Connector::new(Origin::Server(Arc::new(target)), 1, 0, context, None);
        Self {
            connection: Arc::new(Connection::quiet(Arc::new(connector))),
        }
    }

    /// Asks for the primary.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a task still waits for the reply. It replaces a connection that does not reply, and
    /// completes a dial.
    pub(super) async fn ask(self: &Arc<Self>, service: &str) -> SentinelReply {
        let (sentinel, service) = (Arc::clone(self), service.to_owned());
        in_background(async move { sentinel.query(&service).await }).await
    }

    async fn query(&self, service: &str) -> SentinelReply {
        let mut master = redis::cmd("SENTINEL");
        master.arg("MASTER").arg(service);
        let mut address = redis::cmd("SENTINEL");
        address.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        // In this order, the epoch is at most that of the failover that led to the address. After a
        // failover, the second command names the new primary earlier than the first.
        let epoch = match self.connection.query(&master, Resend::Repeatable).await {
            Ok(master) => entry(&master, "config-epoch"),
            // A user without the permission has no epochs.
            Err(error) if is_reply(&error) => None,
            Err(error) => return Err(error),
        };
        let address = match self.connection.query(&address, Resend::Repeatable).await? {
            Value::Nil => return Ok(None),
            address => redis::from_redis_value_ref::<(String, u16)>(&address)
                .map_err(|_| unexpected(&address))?,
        };
        let (host, port) = address;
        Ok(Some(Named {
            host,
            port,
            epoch: epoch.and_then(|it| it.parse().ok()),
        }))
    }
}
