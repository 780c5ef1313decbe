//! Finds out whether one address is several servers, as that of a proxy may be.
//!
//! A server that rejects calls over several slots gets calls of one slot. A proxy that does not check a call sends it
//! to the server of its first key. The call for one lock then finds the body at another server than the call for many,
//! and a key has two owners. Hence each new connection writes keys in one call, and deletes each alone.
//!
//! A quorum needs the id of the server, which is read in the same round trip.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::time::Instant;
use uuid::Uuid;

use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, Names, SPAN, not_connected, text};
use crate::mutex::Mutex;

/// The keys of one call. Two servers have all of them at one of the two with a probability of 1 in 2^63.
const SPANNED: u8 = 64;
/// The TTL of keys that the deletion does not find. It exceeds the time of a probe.
const TTL: Duration = Duration::from_secs(10);
/// The time after which a server that has refused grants is probed again.
const AGAIN: Duration = Duration::from_secs(1);

/// What the last probes of a server found.
pub(crate) struct Spread {
    /// `None` for a server that is not probed.
    names: Option<Names>,
    /// The server has the keys at several servers by slot, and rejects calls over several slots. Always unset in a
    /// cluster, whose nodes are known.
    pub(crate) is_sharded: AtomicBool,
    /// The number of keys that another server than that of the call has, or 0.
    elsewhere: AtomicU8,
    /// The start of the run id, or 0.
    server: AtomicU64,
    /// The user may not read the run id, so nothing asks again.
    is_id_denied: AtomicBool,
    /// The time of the last probe.
    probed_at: Mutex<Option<Instant>>,
}

impl Spread {
    pub(super) fn new(names: Option<Names>) -> Self {
        Self {
            names,
            is_sharded: AtomicBool::new(false),
            elsewhere: AtomicU8::new(0),
            server: AtomicU64::new(0),
            is_id_denied: AtomicBool::new(false),
            probed_at: Mutex::default(),
        }
    }

    /// Returns the reason to refuse grants, if there is one.
    pub(in crate::backend::redis::connection) fn found(&self) -> Option<Cause> {
        let elsewhere = self.elsewhere.load(Ordering::Relaxed);
        (elsewhere > 0).then_some(Cause::Spread(elsewhere, SPANNED))
    }

    /// Returns the id of the last server, which changes with its restart.
    pub(crate) fn server(&self) -> Option<u64> {
        Some(self.server.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// Stores the id in the reply to `INFO`. Without one, the next connection asks again, unless the user may not.
    fn name(&self, reply: &Value) {
        let is_denied = matches!(reply, Value::ServerError(error) if error.code() == "NOPERM");
        let info = text(reply);
        let id = info
            .as_deref()
            .and_then(|it| it.lines().find_map(|line| line.strip_prefix("run_id:")))
            .and_then(|id| u64::from_str_radix(id.get(..16)?, 16).ok());
        self.is_id_denied.store(is_denied, Ordering::Relaxed);
        self.server.store(id.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns `true` if the caller must probe again. Others need not.
    pub(in crate::backend::redis::connection) fn is_due(&self) -> bool {
        let mut last = self.probed_at.lock();
        let is_due = last.is_some_and(|last| last.elapsed() >= AGAIN);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }

    /// Probes the server of a new connection. A rejection, as with its memory full, leaves what was found before.
    pub(super) async fn probe(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), BackendError> {
        let Some(names) = &self.names else {
            return Ok(());
        };
        if let [found, deleted @ ..] = &self.ask(names, connection, true).await?[..] {
            if let Value::ServerError(error) = found {
                if error.code() == "CROSSSLOT" {
                    self.is_sharded.store(true, Ordering::Relaxed);
                }
                return Ok(());
            }
            let mut elsewhere = missing(deleted);
            if elsewhere > 0 {
                // A proxy may reorder commands. A deletion that follows the reply cannot overtake the call.
                elsewhere = missing(&self.ask(names, connection, false).await?);
            }
            *self.probed_at.lock() = Some(Instant::now());
            self.elsewhere.store(elsewhere, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes keys and deletes them, at once or behind the reply. Returns the replies, only those to the deletions if
    /// they are behind.
    async fn ask(
        &self,
        names: &Names,
        connection: &mut MultiplexedConnection,
        at_once: bool,
    ) -> Result<Vec<Value>, BackendError> {
        let id = Uuid::new_v4().to_string();
        let keys = (0..SPANNED).map(|n| LockKey::from_parts(["self-test", &id, &n.to_string()]));
        let keys: Vec<_> = keys.collect();
        let mut commands = redis::pipe();
        let names_server = at_once && !self.is_id_denied.load(Ordering::Relaxed);
        if names_server {
            commands.cmd("INFO").arg("server");
        }
        let call = commands.cmd("EVAL").arg(SPAN).arg(keys.len());
        for key in &keys {
            call.arg(names.body(key));
        }
        call.arg(TTL.as_secs());
        if !at_once {
            send(connection, &commands).await?;
            commands = redis::pipe();
        }
        for key in &keys {
            commands.cmd("DEL").arg(names.body(key));
        }
        let mut replies = send(connection, &commands).await?;
        if names_server && !replies.is_empty() {
            self.name(&replies.remove(0));
        }
        Ok(replies)
    }
}

async fn send(
    connection: &mut MultiplexedConnection,
    commands: &Pipeline,
) -> Result<Vec<Value>, BackendError> {
    let replies = connection.send_packed_commands(commands, 0, commands.len());
    replies.await.map_err(not_connected)
}

/// Returns how many keys were missing, or 0 unless others were found: all can have expired.
fn missing(deleted: &[Value]) -> u8 {
    let count = |reply| {
        deleted
            .iter()
            .filter(|it| **it == Value::Int(reply))
            .count()
    };
    match count(1) {
        0 => 0,
        _ => u8::try_from(count(0)).unwrap_or(SPANNED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(bytes: &str) -> Value {
        redis::parse_redis_value(bytes.as_bytes()).unwrap()
    }

    #[test]
    fn only_denial_of_run_id_is_remembered() {
        let spread = Spread::new(None);
        let asks = |text: &str| {
            spread.name(&reply(text));
            !spread.is_id_denied.load(Ordering::Relaxed)
        };
        for text in [
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-BUSY Redis is busy running a script\r\n",
            "-ERR unknown command 'INFO'\r\n",
            "$15\r\nredis_mode:none\r\n",
            "_\r\n",
        ] {
            assert!(asks(text), "{text}");
            assert_eq!(spread.server(), None, "{text}");
        }
        assert!(asks("$33\r\n# Server\r\nrun_id:00000000000000ff\r\n"));
        assert_eq!(spread.server(), Some(255));
        assert!(!asks(
            "-NOPERM this user has no permissions to run 'info'\r\n"
        ));
    }
}
