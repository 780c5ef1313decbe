//! What follows a command without a reply: its undo, or else a probe of the link, and calls until the server replies
//! to one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::connection::Connection;
use crate::backend::redis::connection::{Link, Resend, Undo, backoff};
use crate::task::{Background, timeout};

/// The time for the reply to a probe or an undo, in response timeouts. After it the link is closed, even if
/// there is no replacement.
const PROBE_TIMEOUTS: u32 = 10;
/// The pauses between two calls to a server that does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Connection {
    /// Reports trouble that was noticed elsewhere: the link is probed, and replaced unless it answers
    /// first.
    pub(crate) fn mark_suspect(self: &Arc<Self>, link: &Arc<Link>) {
        link.mark_suspect();
        self.probe(link);
    }

    /// Asks a server that did not reply to a command, until it replies to one. One task asks at a time.
    pub(super) fn ask_until_answered(self: &Arc<Self>) {
        let Some(running) = self.asking.start().filter(|_| !self.is_quiet()) else {
            return;
        };
        let connection = Arc::downgrade(self);
        Background.spawn(async move {
            // A script that no server knows. While writes are paused, no server answers a call of a script.
            let mut call = redis::cmd("EVALSHA");
            call.arg("0000000000000000000000000000000000000000").arg(0);
            for failures in 1.. {
                sleep(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
                match connection.upgrade() {
                    // Any reply makes it answered.
                    Some(connection) if connection.is_silent() => {
                        let _rejected = connection.query(&call, Resend::Repeatable).await;
                    }
                    _ => break,
                }
            }
            drop(running);
            if let Some(connection) = connection.upgrade()
                && connection.is_silent()
            {
                connection.ask_until_answered();
            }
        });
    }

    pub(super) fn probe(self: &Arc<Self>, link: &Arc<Link>) {
        let Some(running) = link.probe.start() else {
            return;
        };
        let (connection, link) = (Arc::clone(self), Arc::clone(link));
        let limit = self.probe_limit();
        Background.spawn(async move {
            let ping = redis::cmd("PING");
            match timeout(limit, link.send(&ping, false)).await {
                Ok(Ok(_pong)) => {
                    // First, or a command that times out in between would start no probe.
                    drop(running);
                    connection.mark_healthy(&link);
                }
                Ok(Err(_)) | Err(_) => connection.discard(&link),
            }
        });
    }

    /// The time for which a link is kept for the reply to a probe or an undo.
    pub(crate) fn probe_limit(&self) -> Duration {
        self.context().response_timeout * PROBE_TIMEOUTS
    }

    /// Sends the undo of a command behind the command, on its link, which is kept until the reply.
    ///
    /// Without a reply the link is closed, or links that hang would pile up. The caller of the backend releases the
    /// lease as well, until it has a reply.
    pub(super) fn undo(self: &Arc<Self>, undo: Undo<'_>, link: &Arc<Link>, asking: bool) {
        let (connection, link) = (Arc::clone(self), Arc::clone(link));
        let commands = (undo.commands)();
        let limit = undo.limit.min(self.probe_limit());
        Background.spawn(async move {
            match timeout(limit, link.undo(&commands, asking)).await {
                Ok(Ok(())) => connection.answered(&link),
                Ok(Err(_)) | Err(_) => connection.discard(&link),
            }
        });
    }
}
