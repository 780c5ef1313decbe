//! One multiplexed connection, and whether it still answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::address::Visit;
use super::one_task::OneTask;
use super::request::undo;
use crate::backend::BackendError;
use crate::backend::redis::command::{CommandError, check, not_primary};

/// Reports the role in any protocol version, without a permission.
pub(crate) const ROLE: &str = "HELLO";

/// A connection from the pool. It closes when the last handle is dropped.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// The address of the server that it leads to.
    pub(crate) address: String,
    pub(crate) visit: Visit,
    /// It answered for a wrong server, and takes no new command.
    misled: AtomicBool,
    /// A command timed out, and no reply arrived since.
    suspect: AtomicBool,
    pub(super) probe: OneTask,
    /// The connection ended. Only RESP3 announces that.
    ended: Arc<AtomicBool>,
    /// Dropped after the connection, so that the next one may be opened.
    _permit: OwnedSemaphorePermit,
}

impl Link {
    pub(crate) fn new(
        connection: MultiplexedConnection,
        address: String,
        visit: Visit,
        ended: Arc<AtomicBool>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            connection,
            address,
            visit,
            misled: AtomicBool::new(false),
            ended,
            suspect: AtomicBool::new(false),
            probe: OneTask::default(),
            _permit: permit,
        }
    }

    /// Sends a command, and waits for its reply. `asking`: directly behind `ASKING`, for a slot that is moving to the node.
    ///
    /// A check of the role precedes it if the connection is doubtful. The reply of a server that is no primary is
    /// `READONLY`: its own one may be out of date.
    pub(crate) async fn send(&self, command: &Cmd, asking: bool) -> Result<Value, RedisError> {
        let mut connection = self.connection.clone();
        let is_doubtful = self.visit.is_doubtful();
        if !asking && !is_doubtful {
            return connection.send_packed_command(command).await;
        }
        let moves = self.visit.moves();
        let mut all = redis::pipe();
        if is_doubtful {
            all.cmd(ROLE);
        }
        if asking {
            all.cmd("ASKING");
        }
        let before = all.len();
        all.add_command(command.clone());
        // Boxed, so that the usual command does not contain it.
        let replies = Box::pin(connection.send_packed_commands(&all, 0, before + 1)).await;
        let mut replies = replies?;
        let reply = replies.pop().unwrap_or(Value::Nil);
        if is_doubtful {
            if let Some(rejection) = replies.first().and_then(not_primary) {
                return Ok(rejection);
            }
            self.visit.checked(moves);
        }
        Ok(reply)
    }

    /// Sends the commands of an undo.
    pub(crate) async fn undo(&self, commands: &[Cmd], asking: bool) -> Result<(), CommandError> {
        undo(commands, |command| async move {
            match self.send(command, asking).await {
                Ok(reply) => check(reply).map(drop),
                Err(error) => Err(CommandError::Died(BackendError::unknown(error))),
            }
        })
        .await
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn is_misled(&self) -> bool {
        self.misled.load(Ordering::Relaxed)
    }

    pub(super) fn mark_misled(&self) {
        self.misled.store(true, Ordering::Relaxed);
        self.visit.misled();
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the connection was suspect.
    pub(crate) fn mark_healthy(&self) -> bool {
        // The load keeps the usual case free of writes to a cache line that all commands share.
        self.is_suspect() && self.suspect.swap(false, Ordering::Relaxed)
    }
}
