//! Acquires that wait for replicas.
//!
//! `WAIT` counts the writes of its own connection, and blocks the commands behind it. Such an acquire
//! has a connection of its own, and sends both commands at once:
//!
//! | acquire | `WAIT` | then, on the same connection |
//! |---|---|---|
//! | granted | enough | nothing |
//! | granted | too few, or rejected | the release, before the connection is used again |
//! | granted again | too few, or rejected | nothing: an owner may rely on the earlier grant |
//! | busy, rejected | ignored | nothing; the connection is used again after the reply to `WAIT` |
//! | no reply to one of them | | the release, behind both |
//!
//! Renewals and releases use the shared connections, and never follow a `WAIT`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready, select};
use redis::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::checkout::Checkout;
use crate::backend::BackendError;
use crate::backend::redis::command::{
    Cause, CommandError, granted, is_granted_again, millis, unavailable, unexpected,
};
use crate::backend::redis::connection::{CallSpan, Connection, Request, Undo, backoff};
use crate::mutex::Mutex;
use crate::task::{timeout, timeout_at};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(400);

/// How many replicas must acknowledge a grant, and within which time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinReplicas {
    pub(crate) replicas: usize,
    pub(crate) timeout: Duration,
}

/// The acquires at one node.
pub(crate) struct Replicas {
    asked: MinReplicas,
    /// One permit for each connection that may be checked out at a time.
    connections: Arc<Semaphore>,
    shortage: Mutex<Shortage>,
}

/// A time with too few replicas. All acquires are rejected until the backoff has passed: each attempt
/// takes and releases a key, and that release would notify the next waiter at once.
#[derive(Default)]
struct Shortage {
    failures: u32,
    until: Option<Instant>,
    acknowledged: i64,
}

impl Replicas {
    /// The number of concurrent acquires at one node.
    pub(crate) const CONNECTIONS: usize = 32;

    /// `connections`: the room in the pool.
    pub(crate) fn new(asked: MinReplicas, connections: usize) -> Self {
        let connections = connections.clamp(1, Self::CONNECTIONS);
        Self {
            asked,
            connections: Arc::new(Semaphore::new(connections)),
            shortage: Mutex::default(),
        }
    }

    /// Sends an acquire to the server of `connection`, and returns a grant only if enough replicas have
    /// it. Otherwise the grant is released. If that is uncertain, the result is unknown.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the connection is closed, and a grant stays until it expires.
    pub(crate) async fn acquire(
        &self,
        connection: &Arc<Connection>,
        request: &Request<'_>,
        undo: Undo<'_>,
        mut asking: bool,
    ) -> Result<Value, CommandError> {
        let mut rejected = None;
        loop {
            let checkout = match self.checkout(connection).await {
                Ok(checkout) => checkout,
                Err(error) => return Err(rejected.unwrap_or(error)),
            };
            let link = Arc::clone(&checkout.link);
            let attempt = self.attempt(connection, checkout, request, undo, asking);
            match attempt.await {
                // As over a shared connection, it is sent once more.
                Err(error) if link.is_misled() && error.is_rejection() => {
                    asking |= error.is_ask();
                    let error = error.by_wrong_server();
                    if rejected.is_some() {
                        return Err(error);
                    }
                    rejected = Some(error);
                }
                outcome => return outcome,
            }
        }
    }

    async fn attempt(
        &self,
        connection: &Arc<Connection>,
        checkout: Checkout,
        request: &Request<'_>,
        undo: Undo<'_>,
        asking: bool,
    ) -> Result<Value, CommandError> {
        let MinReplicas {
            replicas: least,
            timeout: wait_limit,
        } = self.asked;
        let response_timeout = connection.context().response_timeout;
        let link = Arc::clone(&checkout.link);
        let mut wait = redis::cmd("WAIT");
        wait.arg(least).arg(millis(wait_limit));

        let sent_at = Instant::now();
        let span = CallSpan::begin(request, &link.address);
        let acquired = pin!(link.send(request.command, asking));
        let waited = pin!(link.send(&wait, false));
        let replies = async {
            // `select` polls both in this order, so both are sent before the first reply.
            match select(acquired, waited).await {
                Either::Left((reply, waited)) => (reply, Either::Left(waited)),
                // Both replies arrived between the two polls.
                Either::Right((count, acquired)) => (acquired.await, Either::Right(ready(count))),
            }
        };
        let replies = timeout_at(sent_at + response_timeout, replies).await;
        span.end(replies.as_ref().ok().map(|(reply, _)| reply));
        let Ok((reply, waited)) = replies else {
            let behind = response_timeout + wait_limit;
            return Err(checkout.silent(undo, asking, response_timeout, behind));
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return Err(checkout.died(error)),
        };
        let reply = connection.judged(&link, request, reply);
        if link.is_misled() {
            return reply;
        }
        let is_first = match &reply {
            Ok(reply) if granted(reply).is_some() => true,
            Ok(reply) if is_granted_again(reply) => false,
            _ => {
                // Nothing was written. The caller does not wait for `WAIT`, which takes all of its time
                // if there are no replicas.
                match waited.now_or_never() {
                    Some(_over) => checkout.put_back(),
                    None => {
                        let ping = redis::cmd("PING");
                        checkout.settle(vec![ping], false, response_timeout + wait_limit);
                    }
                }
                return reply;
            }
        };

        let limit = response_timeout + wait_limit;
        let Ok(count) = timeout_at(sent_at + limit, waited).await else {
            return Err(checkout.silent(undo, asking, limit, limit));
        };
        let error = match count.map(|count| connection.judged(&link, request, count)) {
            Ok(Ok(Value::Int(count))) => {
                if usize::try_from(count).is_ok_and(|count| count >= least) {
                    if connection.connector.has_left(&checkout.link) {
                        // The grant of a former primary is void.
                        return Err(checkout.died(Cause::NotPrimary));
                    }
                    self.sufficed();
                    checkout.put_back();
                    return reply;
                }
                self.fell_short(count);
                unavailable(self.too_few(count))
            }
            Ok(Ok(reply)) => unexpected(&reply),
            Ok(Err(rejected)) => rejected.into(),
            Err(error) => return Err(checkout.died(error)),
        };
        if !is_first {
            // The caller that sent the acquire twice decides whether to release the earlier grant.
            checkout.put_back();
            return Err(CommandError::Died(BackendError::unknown(error)));
        }
        match timeout(response_timeout, link.undo(&(undo.commands)(), asking)).await {
            Ok(Ok(())) => {
                checkout.put_back();
                Err(CommandError::Refused(error))
            }
            Ok(Err(_)) => Err(checkout.died(error)),
            Err(_elapsed) => {
                let waited = response_timeout;
                Err(checkout.silent(undo, asking, waited, waited))
            }
        }
    }

    /// Returns a connection for one acquire, within the connect timeout.
    async fn checkout(&self, connection: &Arc<Connection>) -> Result<Checkout, CommandError> {
        self.admit()?;
        // Free while the shared link is sound. Otherwise its backoff and its search for the primary
        // apply here as well.
        let shared = connection.await_checked_link().await;
        let shared = shared.map_err(CommandError::Unsent)?;
        let shared = connection.granting(shared).await;
        let shared = shared.map_err(CommandError::Refused)?;
        let limit = connection.context().connect_timeout;
        let deadline = Instant::now() + limit;
        let permit = Arc::clone(&self.connections).acquire_owned();
        let Ok(Ok(permit)) = timeout_at(deadline, permit).await else {
            return Err(CommandError::Unsent(unavailable(Cause::Crowded)));
        };
        // Earlier acquires may have found too few replicas in the meantime.
        self.admit()?;
        let opened = timeout_at(deadline, connection.connector.checkout(&shared)).await;
        let no_connection = || unavailable(Cause::NoConnection(limit));
        match opened.unwrap_or_else(|_elapsed| Err(no_connection())) {
            Ok(pooled) => Ok(Checkout::new(pooled, connection, shared, permit)),
            Err(error) => {
                connection.mark_suspect(&shared);
                Err(CommandError::Unsent(error))
            }
        }
    }

    fn too_few(&self, acknowledged: i64) -> Cause {
        let asked = self.asked.replicas;
        Cause::TooFewReplicas {
            acknowledged,
            asked,
        }
    }

    /// Rejects an attempt before the backoff has passed.
    fn admit(&self) -> Result<(), CommandError> {
        let shortage = self.shortage.lock();
        match shortage.until {
            Some(until) if Instant::now() < until => Err(CommandError::unavailable(
                self.too_few(shortage.acknowledged),
            )),
            _ => Ok(()),
        }
    }

    fn fell_short(&self, acknowledged: i64) {
        let mut shortage = self.shortage.lock();
        shortage.acknowledged = acknowledged;
        let now = Instant::now();
        // Concurrent attempts count as one failure.
        if shortage.until.is_none_or(|until| until <= now) {
            shortage.failures = shortage.failures.saturating_add(1);
            let pause = backoff(shortage.failures, FIRST_BACKOFF, LONGEST_BACKOFF);
            shortage.until = Some(now + pause);
        }
    }

    fn sufficed(&self) {
        let mut shortage = self.shortage.lock();
        if shortage.failures > 0 {
            *shortage = Shortage::default();
        }
    }
}
