//! A command, its undo and its reply.

use std::time::Duration;

use redis::{Cmd, Value};

use crate::backend::redis::command::CommandError;

/// A command, and what follows it if the reply does not arrive.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) command: &'a Cmd,
    /// `None` for a command that leaves nothing behind.
    pub(crate) undo: Option<Undo<'a>>,
}

/// The reply to a command.
pub(crate) struct Reply {
    pub(crate) value: Value,
    /// The command was sent before, over a connection that ended. It may have taken effect then.
    pub(crate) resent: bool,
    /// The slot is moving to the cluster node that replied, and most of its subscribers are at the other one.
    pub(crate) asked: bool,
}

/// Undoes a command without a reply, which may still reach the server.
#[derive(Clone, Copy)]
pub(crate) struct Undo<'a> {
    pub(crate) command: &'a (dyn Fn() -> Cmd + Send + Sync),
    /// The time after which there is nothing left to undo.
    pub(crate) limit: Duration,
}

impl<'a> From<&'a Cmd> for Request<'a> {
    fn from(command: &'a Cmd) -> Self {
        Self {
            command,
            undo: None,
        }
    }
}

/// Returns the outcome of a command that was sent before if `resent`, over a connection that ended.
pub(crate) fn after(
    outcome: Result<Reply, CommandError>,
    resent: bool,
) -> Result<Reply, CommandError> {
    match outcome {
        Ok(reply) => Ok(Reply {
            resent: reply.resent || resent,
            ..reply
        }),
        Err(error) => Err(error.after(resent)),
    }
}
