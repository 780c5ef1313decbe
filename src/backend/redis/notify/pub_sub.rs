//! The commands of subscriptions, and their replies among the push messages.

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Value};

use super::publish::Publish;
use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, CommandError, check, not_connected, unavailable};

/// The kind of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PubSub {
    Plain,
    /// Messages stay at the nodes that have the channel's slot. Exists since Redis 7.0.
    Sharded,
}

impl PubSub {
    /// Returns the kinds to subscribe to for messages of this kind.
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
        // One channel per command: one reply per command, and in a cluster one slot.
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

/// Sends a command over a subscription connection. A rejection by the server is [`CommandError::Refused`] or
/// [`CommandError::Elsewhere`]. After any other error, the connection is unusable.
pub(super) async fn ask(
    connection: &MultiplexedConnection,
    command: &Cmd,
) -> Result<(), CommandError> {
    let reply = connection.clone().send_packed_command(command).await;
    let reply = reply.map_err(|error| CommandError::Unsent(not_connected(error)))?;
    let reply = check(reply)?;
    if is_reply(command, &reply) {
        return Ok(());
    }
    // The end of a subscription, which the server reported, took the place of the reply.
    Err(CommandError::Died(unavailable(Cause::reply(&reply))))
}

/// Returns an error unless the connection is alive.
pub(super) async fn ping(connection: &MultiplexedConnection) -> Result<(), BackendError> {
    ask(connection, &redis::cmd("PING"))
        .await
        .map_err(Into::into)
}

/// Returns `true` for the reply to a command. A push message that repeats the command and the channel is the
/// reply to a command about a channel.
fn is_reply(command: &Cmd, reply: &Value) -> bool {
    let mut words = command.args_iter().filter_map(|word| match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    });
    let name = words.next().unwrap_or_default();
    match (reply, words.next()) {
        (Value::Push { kind, data }, Some(channel)) => {
            name.eq_ignore_ascii_case(kind.to_string().as_bytes())
                && matches!(data.first(), Some(Value::BulkString(it)) if it == channel)
        }
        (Value::Push { .. }, None) | (_, Some(_)) => false,
        (_, None) => true,
    }
}
