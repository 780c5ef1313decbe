//! What follows a command without a reply: its undo, or else a probe of the link.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::time::{Instant, sleep};

use super::backoff::backoff;
use super::handle::Connection;
use super::link::Link;
use super::request::Undo;
use crate::task::timeout;

/// The time for the reply to a probe or an undo, in response timeouts. After it the link is closed, even if
/// there is no replacement.
const PROBE_TIMEOUTS: u32 = 10;
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(400);
/// The longest pause between two calls to a server that does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Connection {
    /// Reports trouble that was noticed elsewhere: the link is probed, and replaced unless it answers
    /// first.
    pub(crate) fn mark_suspect(self: &Arc<Self>, link: &Arc<Link>) {
        link.mark_suspect();
        self.probe(link);
    }

    /// Asks a server that did not reply to a command, until it replies to one.
    pub(super) fn ask_until_answered(self: &Arc<Self>) {
        let connection = Arc::downgrade(self);
        self.network().background.spawn(async move {
            // A script that no server knows. While writes are paused, no server answers a call of a script.
            let mut call = redis::cmd("EVALSHA");
            call.arg("0000000000000000000000000000000000000000").arg(0);
            for failures in 1.. {
                sleep(backoff(failures, FIRST_BACKOFF, LONGEST_PAUSE)).await;
                match connection.upgrade() {
                    // Any reply makes it answered.
                    Some(connection) if connection.is_silent() => {
                        let _rejected = connection.send((&call).into(), false).await;
                    }
                    _ => return,
                }
            }
        });
    }

    pub(super) fn probe(self: &Arc<Self>, link: &Arc<Link>) {
        if !link.start_probe() {
            return;
        }
        let (connection, link) = (Arc::clone(self), Arc::clone(link));
        let limit = self.probe_limit();
        self.network().background.spawn(async move {
            let ping = redis::cmd("PING");
            match timeout(limit, link.send(&ping, false)).await {
                Ok(Ok(_pong)) => {
                    link.end_probe();
                    connection.mark_healthy(&link);
                }
                Ok(Err(_)) | Err(_) => connection.discard(&link),
            }
        });
    }

    /// The time for which a link is kept for the reply to a probe or an undo.
    pub(crate) fn probe_limit(&self) -> Duration {
        self.network().response_timeout * PROBE_TIMEOUTS
    }

    /// Sends the undo of a command behind the command, on its link, which is kept until the reply.
    ///
    /// Without a reply the link is closed, or links that hang would pile up. The server may have read the command
    /// and not executed it yet, so the undo follows over a link that was opened after the command was sent.
    pub(super) fn undo(self: &Arc<Self>, undo: Undo<'_>, link: &Arc<Link>, asking: bool) {
        let (connection, link) = (Arc::clone(self), Arc::clone(link));
        let (commands, limit) = ((undo.commands)(), undo.limit);
        let until = Instant::now() + limit;
        let limit = limit.min(self.probe_limit());
        self.network().background.spawn(async move {
            match timeout(limit, link.undo(&commands, asking)).await {
                Ok(Ok(())) => connection.answered(&link),
                Ok(Err(error)) if error.is_rejection() => connection.discard(&link),
                Ok(Err(_)) | Err(_) => {
                    connection.discard(&link);
                    drop(link);
                    let connection = Arc::downgrade(&connection);
                    Self::undo_again(connection, &commands, asking, until).await;
                }
            }
        });
    }

    /// Sends an undo until the server replies, or there is nothing left to undo, or the backend is dropped.
    async fn undo_again(connection: Weak<Self>, commands: &[Cmd], asking: bool, until: Instant) {
        let mut failures = 0;
        while Instant::now() < until
            && let Some(connection) = connection.upgrade()
        {
            match connection.send_undo(commands, asking).await {
                Err(error) if !error.is_rejection() => failures += 1,
                _ => return,
            }
            drop(connection);
            sleep(backoff(failures, FIRST_BACKOFF, LONGEST_BACKOFF)).await;
        }
    }
}
