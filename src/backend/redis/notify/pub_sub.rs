//! The commands of subscriptions, and how their answers are told from what is pushed.

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Value};

use crate::backend::redis::Publish;
use crate::backend::redis::command::{Cause, CommandError, check, kind_of_connecting};
use crate::backend::{BackendError, BackendErrorKind};

/// Which kind of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PubSub {
    Plain,
    /// Messages stay in the part of a cluster that has the channel's slot. Since Redis 7.0.
    Sharded,
}

impl PubSub {
    /// Those by which releases are heard that are told in this way.
    pub(crate) fn kinds(publish: Publish) -> &'static [Self] {
        match publish {
            Publish::Auto | Publish::Plain => &[Self::Plain],
            Publish::Sharded => &[Self::Sharded],
            Publish::Both => &[Self::Plain, Self::Sharded],
        }
    }

    fn command(self, plain: &str, sharded: &str, channel: &str) -> Cmd {
        let mut command = redis::cmd(match self {
            Self::Plain => plain,
            Self::Sharded => sharded,
        });
        // One channel a command: one answer a command, and in a cluster one slot.
        command.arg(channel);
        command
    }

    pub(super) fn subscribe(self, channel: &str) -> Cmd {
        self.command("SUBSCRIBE", "SSUBSCRIBE", channel)
    }

    pub(super) fn unsubscribe(self, channel: &str) -> Cmd {
        self.command("UNSUBSCRIBE", "SUNSUBSCRIBE", channel)
    }
}

/// Sends a command over a connection for subscriptions.
pub(super) async fn ask(
    connection: &MultiplexedConnection,
    command: &Cmd,
) -> Result<(), CommandError> {
    let answer = connection.clone().send_packed_command(command).await;
    let answer = answer.map_err(|error| {
        CommandError::Refused(BackendError::refused(kind_of_connecting(&error), error))
    })?;
    let answer = check(answer)?;
    if is_answer(command, &answer) {
        return Ok(());
    }
    // A subscription that the server ended by itself was taken for the answer.
    Err(CommandError::Refused(BackendError::refused(
        BackendErrorKind::Unavailable,
        Cause::answer(&answer),
    )))
}

/// Whether the connection is alive.
pub(super) async fn ping(connection: &MultiplexedConnection) -> Result<(), BackendError> {
    ask(connection, &redis::cmd("PING"))
        .await
        .map_err(Into::into)
}

/// Commands about a channel are answered by a push that repeats both, and no others are.
fn is_answer(command: &Cmd, answer: &Value) -> bool {
    let mut words = command.args_iter().filter_map(|word| match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    });
    let name = words.next().unwrap_or_default();
    match (answer, words.next()) {
        (Value::Push { kind, data }, Some(channel)) => {
            name.eq_ignore_ascii_case(kind.to_string().as_bytes())
                && matches!(data.first(), Some(Value::BulkString(it)) if it == channel)
        }
        (Value::Push { .. }, None) | (_, Some(_)) => false,
        (_, None) => true,
    }
}
