//! Grants that count only when replicas have them, too.
//!
//! `WAIT` counts the writes of its own connection, and stalls whatever is sent behind it. So such an
//! acquire has a connection for itself, and sends both at once:
//!
//! | acquire | `WAIT` | then, on the same connection |
//! |---|---|---|
//! | granted | enough | nothing |
//! | granted | too few, or refused | the release, before anybody else gets the connection |
//! | granted again | too few, or refused | nothing: the grant before may be somebody's |
//! | busy, refused | never mind | nothing; the next one gets it when `WAIT` is over |
//! | no answer to one of them | | the release, behind both |
//!
//! Renewals and releases go over the shared connections, and never behind a `WAIT`.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready, select};
use redis::{Cmd, Value};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::backend::redis::command::{
    Cause, CommandError, check, granted, is_demoted, millis, unexpected,
};
use crate::backend::redis::connection::{Checkout, Connection, backoff};
use crate::backend::{BackendError, BackendErrorKind};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(400);

/// How many replicas have to acknowledge a grant, and how long they have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinReplicas {
    pub(crate) replicas: usize,
    pub(crate) timeout: Duration,
}

/// What the acquires at one node have in common.
pub(crate) struct Replicas {
    asked: MinReplicas,
    /// A permit for each connection that may be checked out at a time.
    connections: Arc<Semaphore>,
    shortage: Mutex<Shortage>,
}

/// Too few replicas acknowledged. Until the backoff has passed nobody tries: each try takes a key and
/// gives it back, and the message of that calls the next one at once.
#[derive(Default)]
struct Shortage {
    failures: u32,
    until: Option<Instant>,
    acknowledged: i64,
}

/// An acquire, and what undoes it.
#[derive(Clone, Copy)]
pub(crate) struct Acquire<'a> {
    pub(crate) command: &'a Cmd,
    pub(crate) undo: &'a (dyn Fn() -> Cmd + Send + Sync),
    pub(crate) ttl: Duration,
}

impl Replicas {
    /// How many acquires may be at it at a time, at one node.
    pub(crate) const CONNECTIONS: usize = 32;

    /// `connections`: for how many there is room in the pool.
    pub(crate) fn new(asked: MinReplicas, connections: usize) -> Self {
        let connections = connections.clamp(1, Self::CONNECTIONS);
        Self {
            asked,
            connections: Arc::new(Semaphore::new(connections)),
            shortage: Mutex::default(),
        }
    }

    /// Runs an acquire at the node of `connection`. A grant is answered only if enough replicas have it.
    /// If not, it has been given back; where that is not certain, the outcome is unknown.
    ///
    /// # Cancel safety
    ///
    /// Must be driven to its end. Dropped before, it closes the connection, and what it got runs
    /// out by itself.
    pub(crate) async fn acquire(
        &self,
        connection: &Arc<Connection>,
        acquire: Acquire<'_>,
        asking: bool,
    ) -> Result<Value, CommandError> {
        let MinReplicas {
            replicas: least,
            timeout: patience,
        } = self.asked;
        let response_timeout = connection.connector.network.response_timeout;
        let checkout = self.checkout(connection).await?;
        let link = Arc::clone(&checkout.link);
        let mut wait = redis::cmd("WAIT");
        wait.arg(least).arg(millis(patience));

        let sent_at = Instant::now();
        let acquired = pin!(link.send(acquire.command, asking));
        let waited = pin!(link.send(&wait, false));
        let answers = async {
            // Polls both, in this order, before it waits: one goes out behind the other, not behind
            // the other's answer.
            match select(acquired, waited).await {
                Either::Left((answer, waited)) => (answer, Either::Left(waited)),
                // Both came between the two polls.
                Either::Right((count, acquired)) => (acquired.await, Either::Right(ready(count))),
            }
        };
        let Ok((answer, waited)) = timeout_at(sent_at + response_timeout, answers).await else {
            return Err(checkout.silent(acquire, asking, response_timeout));
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Err(checkout.died(error)),
        };
        if is_demoted(&answer) {
            connection.demoted(&checkout.shared);
        }
        let answer = check(answer);
        let is_first = match &answer {
            Ok(answer) if granted(answer).is_some() => true,
            Ok(Value::Array(_)) => false,
            _ => {
                // There is nothing for replicas to acknowledge, so nobody waits for that: without
                // replicas, `WAIT` takes all of its time also for this.
                match waited.now_or_never() {
                    Some(_over) => checkout.give_back(),
                    None => {
                        let ping = redis::cmd("PING");
                        checkout.settle(ping, false, response_timeout + patience);
                    }
                }
                return answer;
            }
        };

        let limit = response_timeout + patience;
        let Ok(count) = timeout_at(sent_at + limit, waited).await else {
            return Err(checkout.silent(acquire, asking, limit));
        };
        let error = match count.map(check) {
            Ok(Ok(Value::Int(count))) => {
                if usize::try_from(count).is_ok_and(|count| count >= least) {
                    if connection.connector.is_left_behind(&checkout.link) {
                        return Err(checkout.left_behind());
                    }
                    self.sufficed();
                    checkout.give_back();
                    return answer;
                }
                self.fell_short(count);
                unavailable(self.too_few(count))
            }
            Ok(Ok(answer)) => unexpected(&answer),
            Ok(Err(refused)) => refused.into(),
            Err(error) => return Err(checkout.died(error)),
        };
        if !is_first {
            // Not ours to take back; whoever asked twice knows whether it is to be released.
            checkout.give_back();
            return Err(CommandError::Died(BackendError::unknown(error)));
        }
        let undo = (acquire.undo)();
        match timeout(response_timeout, link.send(&undo, asking)).await {
            Ok(Ok(Value::Int(_))) => {
                checkout.give_back();
                Err(CommandError::Refused(error))
            }
            Ok(Ok(_refused)) => {
                checkout.close();
                Err(CommandError::Died(BackendError::unknown(error)))
            }
            Ok(Err(error)) => Err(checkout.died(error)),
            Err(_elapsed) => Err(checkout.silent(acquire, asking, response_timeout)),
        }
    }

    /// A connection for one acquire, within the connect timeout.
    async fn checkout(&self, connection: &Arc<Connection>) -> Result<Checkout, CommandError> {
        self.admit()?;
        // Free of cost while the shared connection is sound. While it is not, its backoff holds
        // here, too, and so does what it finds out about where the primary is.
        let shared = connection
            .await_link()
            .await
            .map_err(CommandError::Unsent)?;
        let limit = connection.connector.network.connect_timeout;
        let deadline = Instant::now() + limit;
        let permit = Arc::clone(&self.connections).acquire_owned();
        let Ok(Ok(permit)) = timeout_at(deadline, permit).await else {
            return Err(CommandError::Unsent(unavailable(Cause::Crowded)));
        };
        // Those ahead may have found that it is no use.
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

    fn shortage(&self) -> MutexGuard<'_, Shortage> {
        self.shortage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn too_few(&self, acknowledged: i64) -> Cause {
        let asked = self.asked.replicas;
        Cause::TooFewReplicas {
            acknowledged,
            asked,
        }
    }

    /// Refuses while it is too early for another try.
    fn admit(&self) -> Result<(), CommandError> {
        let shortage = self.shortage();
        match shortage.until {
            Some(until) if Instant::now() < until => Err(CommandError::unavailable(
                self.too_few(shortage.acknowledged),
            )),
            _ => Ok(()),
        }
    }

    fn fell_short(&self, acknowledged: i64) {
        let mut shortage = self.shortage();
        shortage.acknowledged = acknowledged;
        let now = Instant::now();
        // Those that were under way together are one failure.
        if shortage.until.is_none_or(|until| until <= now) {
            shortage.failures = shortage.failures.saturating_add(1);
            let pause = backoff(shortage.failures, FIRST_BACKOFF, LONGEST_BACKOFF);
            shortage.until = Some(now + pause);
        }
    }

    fn sufficed(&self) {
        let mut shortage = self.shortage();
        if shortage.failures > 0 {
            *shortage = Shortage::default();
        }
    }
}

fn unavailable(trouble: Cause) -> BackendError {
    BackendError::refused(BackendErrorKind::Unavailable, trouble)
}
