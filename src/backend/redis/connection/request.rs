//! A command and its undo.

use std::time::Duration;

use redis::Cmd;

/// A command, and what follows it if the reply does not arrive.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) command: &'a Cmd,
    /// `None` for a command that leaves nothing behind.
    pub(crate) undo: Option<Undo<'a>>,
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
