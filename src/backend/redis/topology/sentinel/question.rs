//! One sentinel, and the question that it is asked.

use std::sync::Arc;

use redis::Value;

use super::votes::{Named, SentinelReply};
use crate::backend::redis::command::{entry, is_reply, unexpected};
use crate::backend::redis::connection::{
    ClientContext, Connection, Connector, Origin, Resend, Target, in_background,
};

/// Returns the connection to a sentinel, which is kept for all questions.
pub(super) fn sentinel(target: Target, context: Arc<ClientContext>) -> Arc<Connection> {
    let connector = Connector::new(Origin::Server(Arc::new(target)), 1, 0, context, None);
    Arc::new(Connection::quiet(Arc::new(connector)))
}

/// Asks a sentinel for the primary.
///
/// # Cancel safety
///
/// If dropped, a task still waits for the reply. It replaces a connection that does not reply, and
/// completes a dial.
pub(super) async fn ask(sentinel: &Arc<Connection>, service: &str) -> SentinelReply {
    let (sentinel, service) = (Arc::clone(sentinel), service.to_owned());
    in_background(async move { query(&sentinel, &service).await }).await
}

async fn query(sentinel: &Arc<Connection>, service: &str) -> SentinelReply {
    let mut master = redis::cmd("SENTINEL");
    master.arg("MASTER").arg(service);
    let mut address = redis::cmd("SENTINEL");
    address.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    // In this order, the epoch is at most that of the failover that led to the address. After a
    // failover, the second command names the new primary earlier than the first.
    let epoch = match sentinel.query(&master, Resend::Repeatable).await {
        Err(silent) if !is_reply(&silent) => return Err(silent),
        // A user without the permission has no epochs.
        master => master.ok().and_then(|it| entry(&it, "config-epoch")),
    };
    let address = match sentinel.query(&address, Resend::Repeatable).await? {
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
