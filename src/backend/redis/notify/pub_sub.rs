//! The commands of subscriptions, and their replies among the push messages.

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Value};

use super::publish::Publish;
use crate::backend::BackendError;
use crate::backend::redis::command::{
    Cause, CommandError, check, not_connected, not_primary, unavailable,
};
use crate::backend::redis::connection::ROLE;

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

/// Returns an error if the connection is dead, or leads to a replica, whose subscribers the primary does not count.
pub(super) async fn still_leads_there(
    connection: &MultiplexedConnection,
) -> Result<(), BackendError> {
    let role = redis::cmd(ROLE);
    let reply = connection.clone().send_packed_command(&role).await;
    match not_primary(&reply.map_err(not_connected)?) {
        Some(_) => Err(unavailable(Cause::NotPrimary)),
        None => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Asks a server that sends this reply.
    async fn asked(command: &Cmd, reply: &str) -> Result<(), CommandError> {
        let (client, mut server) = duplex(1024);
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new();
        let opened = MultiplexedConnection::new_with_config(&info, client, config).await;
        let (connection, driver) = opened.expect("no handshake");
        tokio::spawn(driver);
        let serves = async {
            server.read_u8().await.expect("a command");
            server.write_all(reply.as_bytes()).await.expect("open");
        };
        tokio::join!(ask(&connection, command), serves).0
    }

    fn pushed(kind: &str, channel: &str) -> String {
        let lengths = [kind, channel].map(str::len);
        format!(
            ">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:1\r\n",
            lengths[0], lengths[1]
        )
    }

    /// The client of `redis` takes the end of a subscription for the reply to the oldest command.
    #[tokio::test]
    async fn unrequested_end_is_no_reply_to_command() {
        let ended = pushed("sunsubscribe", "k");
        for kind in [PubSub::Plain, PubSub::Sharded] {
            let others = [kind.subscribe("other"), kind.unsubscribe("other")];
            let commands = others
                .into_iter()
                .chain([kind.subscribe("k"), redis::cmd("PING")]);
            for command in commands {
                let outcome = asked(&command, &ended).await;
                let sent = String::from_utf8(command.get_packed_command());
                assert!(matches!(outcome, Err(CommandError::Died(_))), "{sent:?}");
            }
        }
    }

    #[tokio::test]
    async fn push_about_same_channel_is_reply() {
        let kind = PubSub::Sharded;
        for (command, reply) in [
            (kind.subscribe("k"), pushed("ssubscribe", "k")),
            (kind.unsubscribe("k"), pushed("sunsubscribe", "k")),
            (redis::cmd("PING"), "+PONG\r\n".to_owned()),
        ] {
            assert!(asked(&command, &reply).await.is_ok(), "{reply}");
        }
    }
}
