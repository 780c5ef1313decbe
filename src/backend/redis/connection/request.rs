//! A command, its undo and its reply.

use std::time::Duration;

use redis::Cmd;

use crate::backend::redis::command::CommandError;

/// What a repeat of a command does, after the first one took effect and its reply was lost.
///
/// A command is sent again if its connection ends, so each request has a class. A command whose repeat would do more
/// belongs to none: it cannot be sent until a script compares it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resend {
    /// A repeat is as good as the command alone: it does the same, or takes a later number or place. Its outcome is the
    /// outcome of the command.
    Repeatable,
    /// The command ends the lease that it names, and no other, or keeps it. A repeat that does not find it is done.
    Compared,
}

/// A command, and what follows it if the reply does not arrive.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) command: &'a Cmd,
    pub(crate) resend: Resend,
    /// `None` for a command that grants nothing.
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

/// What has happened to a request until its reply.
#[derive(Default)]
pub(crate) struct Progress {
    /// The command was sent before, over a connection that ended. It may have taken effect then.
    pub(crate) resent: bool,
    /// The slot is moving to the cluster node that is asked, which must accept the command early. Most of its subscribers
    /// are at the other one.
    pub(crate) asking: bool,
}

/// Undoes a grant without a reply, which may still reach the server.
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

impl<'a> Request<'a> {
    /// Creates the request of a command that grants nothing.
    pub(crate) fn new(command: &'a Cmd, resend: Resend) -> Self {
        Self {
            command,
            resend,
            undo: None,
            called: None,
        }
    }
}
