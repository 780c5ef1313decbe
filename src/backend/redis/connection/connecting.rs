//! The task that opens the next link of a connection.

use std::sync::{Arc, Weak};

use tokio::time::sleep;

use super::handle::Connection;
use crate::backend::redis::command::{Cause, unavailable};

/// The task that opens a link. Callers wait for it, and none can cancel it. On every exit, also if its
/// runtime ends before its first poll, the next attempt can start. During an outage, it continues on the thread of
/// this crate.
pub(super) struct Connecting {
    /// Weak, so that the task ends with the backend, or when the node leaves the cluster.
    connection: Weak<Connection>,
    /// The task runs in the runtime of a caller, which may end.
    near: bool,
    over: bool,
}

impl Connecting {
    /// Starts the task. The caller has set `connecting`.
    pub(super) fn start(connection: &Arc<Connection>) {
        let background = connection.network().background;
        background.spawn_io_near(Self::new(connection, true).run());
    }

    fn new(connection: &Arc<Connection>, near: bool) -> Self {
        Self {
            connection: Arc::downgrade(connection),
            near,
            over: false,
        }
    }

    async fn run(mut self) {
        while let Some(connection) = self.connection.upgrade() {
            let network = Arc::clone(connection.network());
            let ended = self.connection.clone();
            let on_end = move || {
                if let Some(connection) = ended.upgrade() {
                    connection.ended();
                }
            };
            let pause = match connection.connector.connect(on_end).await {
                Ok(link) => {
                    self.over = true;
                    connection.reached();
                    let again = connection.state().connected(link, &connection.connector);
                    drop(self);
                    // A link that ended before this was not replaced, because it was being opened.
                    if connection.state().sound(&connection.connector).is_none() {
                        connection.ended();
                    }
                    if again && !connection.is_quiet() {
                        // The store may have changed in the meantime: waiters try, holders renew.
                        network.recovery.report();
                    }
                    return;
                }
                // The old link answered in the meantime, so there is no outage.
                Err(_) if connection.sound_link().is_some() => {
                    connection.reached();
                    self.over = true;
                    return;
                }
                Err(error) => {
                    connection.unreached(&error);
                    let pause = connection.state().failed(error);
                    connection.changed.notify_waiters();
                    pause
                }
            };
            // An outage without a command would otherwise never end.
            if connection.is_quiet() {
                self.over = true;
                return;
            }
            drop(connection);
            sleep(pause).await;
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let Some(connection) = self.connection.upgrade() else {
            return;
        };
        if !self.over && self.near && connection.is_out() {
            let background = connection.network().background;
            return background.spawn(Self::new(&connection, false).run());
        }
        let mut state = connection.state();
        state.connecting = false;
        if !self.over {
            // In a runtime that shuts down, the next attempt would end like this one within the same
            // poll, and a caller that waits for it would block its thread.
            state.failed(unavailable(Cause::NoRuntime));
        }
        drop(state);
        connection.changed.notify_waiters();
    }
}
