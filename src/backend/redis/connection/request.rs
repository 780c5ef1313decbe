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
    /// `None` for a command that calls no script.
    pub(crate) called: Option<Called>,
}

/// The script that a command calls, and the number of locks in the call.
#[derive(Clone, Copy)]
pub(crate) struct Called {
    pub(crate) script: &'static str,
    pub(crate) locks: usize,
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
    /// Returns the commands, as [`undo`] sends them.
    pub(crate) commands: &'a (dyn Fn() -> Vec<Cmd> + Send + Sync),
    /// The time after which there is nothing left to undo.
    pub(crate) limit: Duration,
}

/// Sends the commands of an undo, each only if the server rejects the one before: one of its keys may be denied, or
/// at another node.
pub(super) async fn undo<'a, F>(
    commands: &'a [Cmd],
    send: impl Fn(&'a Cmd) -> F,
) -> Result<(), CommandError>
where
    F: Future<Output = Result<(), CommandError>>,
{
    let mut outcome = Ok(());
    for command in commands {
        outcome = send(command).await;
        if !outcome.as_ref().is_err_and(CommandError::is_rejection) {
            break;
        }
    }
    outcome
}

/// Each command that is no script is repeatable. Each script has a class, `Resend`.
impl<'a> From<&'a Cmd> for Request<'a> {
    fn from(command: &'a Cmd) -> Self {
        Self {
            command,
            undo: None,
            called: None,
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
