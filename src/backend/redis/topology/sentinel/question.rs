//! One sentinel, and the question that it is asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use redis::Value;
use tokio::sync::oneshot;

use super::votes::{Named, SentinelReply};
use crate::backend::redis::command::{Cause, check, entry, unavailable, unexpected};
use crate::backend::redis::connection::{Connection, Connector, Network, Origin, Target};

/// A sentinel and the connection to it, which is kept for the next question.
pub(super) struct Sentinel {
    connection: Arc<Connection>,
    /// The reply for which a task waits.
    asked: Mutex<Option<Shared<oneshot::Receiver<SentinelReply>>>>,
}

impl Sentinel {
    pub(super) fn new(target: Target, network: Arc<Network>) -> Self {
        let connector = Connector::new(Origin::Server(Arc::new(target)), 1, 0, network, None);
        Self {
            connection: Arc::new(Connection::quiet(Arc::new(connector))),
            asked: Mutex::default(),
        }
    }

    fn asked(&self) -> MutexGuard<'_, Option<Shared<oneshot::Receiver<SentinelReply>>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the primary. Concurrent callers share one question.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a task still waits for the reply. It replaces a connection that does not reply, and
    /// completes a dial.
    pub(super) async fn ask(self: &Arc<Self>, service: &str) -> SentinelReply {
        let (sender, reply) = {
            let mut asked = self.asked();
            match &*asked {
                Some(reply) => (None, reply.clone()),
                None => {
                    let (sender, reply) = oneshot::channel();
                    (Some(sender), asked.insert(reply.shared()).clone())
                }
            }
        };
        if let Some(sender) = sender {
            let question = Question(Arc::clone(self));
            let service = service.to_owned();
            let background = self.connection.network().background;
            background.spawn(async move {
                let reply = question.0.query(&service).await;
                // The next caller must not receive an old reply.
                drop(question);
                // The callers may be gone.
                drop(sender.send(reply));
            });
        }
        reply
            .await
            .unwrap_or_else(|_| Err(unavailable(Cause::NoRuntime)))
    }

    async fn query(&self, service: &str) -> SentinelReply {
        let mut master = redis::cmd("SENTINEL");
        master.arg("MASTER").arg(service);
        let mut address = redis::cmd("SENTINEL");
        address.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        // In this order, the epoch is at most that of the failover that led to the address. After a
        // failover, the second command names the new primary earlier than the first.
        let (master, address) = self.connection.query_both(&master, &address).await?;
        // A user without the permission has no epochs.
        let epoch = check(master).ok().and_then(|it| entry(&it, "config-epoch"));
        let address = match check(address)? {
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

/// A question that a task asks. Dropped before its reply is sent, and at the end of the task's runtime.
struct Question(Arc<Sentinel>);

impl Drop for Question {
    fn drop(&mut self) {
        *self.0.asked() = None;
    }
}
