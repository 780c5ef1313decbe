//! The task that opens the next link of a connection.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::connection::Connection;
use crate::backend::redis::command::{Cause, unavailable};
use crate::task::{Background, Runtime};

/// The interval of looks at the runtime of the caller. Most links are open before the first one.
const LOOK: Duration = Duration::from_millis(100);
/// A runtime that begins no task within this time is blocked.
const BLOCKED: Duration = Duration::from_millis(250);

/// The task that opens a link. Callers wait for it, and none can cancel it. On every exit, the next attempt can
/// start.
///
/// It begins in the runtime of the caller, which then drives the link. If that runtime ends, also before the first
/// poll, or all its threads block, it begins again on the thread of this crate: callers of other runtimes and holders
/// wait for the link.
pub(super) struct Connecting {
    /// Weak, so that the task ends with the backend, or when the node leaves the cluster.
    connection: Weak<Connection>,
    /// Set in the state unless another task has taken over.
    number: u64,
    /// The task runs in the runtime of a caller, which may end.
    near: bool,
    over: bool,
}

impl Connecting {
    /// Starts the task with the number that the state has.
    pub(super) fn start(connection: &Arc<Connection>, number: u64) {
        let task = Self::new(connection, number, true);
        if let Some(home) = Background.spawn_io_near(task.run()) {
            *connection.context().near.lock() = Some(home.clone());
            let connection = Arc::downgrade(connection);
            Background.spawn(take_over_if_blocked(connection, number, home));
        }
    }

    fn new(connection: &Arc<Connection>, number: u64, near: bool) -> Self {
        Self {
            connection: Arc::downgrade(connection),
            number,
            near,
            over: false,
        }
    }

    async fn run(mut self) {
        while let Some(connection) = self.connection.upgrade() {
            let context = Arc::clone(connection.context());
            let ended = self.connection.clone();
            let on_end = move || {
                if let Some(connection) = ended.upgrade() {
                    connection.ended();
                }
            };
            let is_again = connection.state.lock().connected;
            let pause = match connection.connector.connect(on_end, is_again).await {
                Ok(link) => {
                    self.over = true;
                    connection.reached();
                    let mut state = connection.state.lock();
                    let again = state.connected(link, &connection.connector);
                    drop(state);
                    drop(self);
                    // A link that ended before this was not replaced, because it was being opened.
                    if connection.sound_link().is_none() {
                        connection.ended();
                    }
                    if again {
                        // They may lead to the server of the link before.
                        connection.connector.pools.drop_idle(Instant::now());
                    }
                    if again && !connection.is_quiet() {
                        // The store may have changed in the meantime: waiters try, holders renew.
                        context.recovery.report();
                    }
                    return;
                }
                // The old link answered in the meantime, so there is no outage.
                Err(_) if connection.sound_link().is_some() => {
                    connection.reached();
                    self.over = true;
                    return;
                }
                // Another task opens the link now.
                Err(_) if connection.state.lock().connecting != Some(self.number) => return,
                Err(error) => {
                    // A server that is no primary replied.
                    if !matches!(Cause::behind(&error), Some(Cause::NotPrimary)) {
                        connection.unreached(&error);
                    }
                    let pause = connection.state.lock().failed(error);
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
        let mut state = connection.state.lock();
        if state.connecting != Some(self.number) {
            drop(state);
            // This link may be the first one.
            return connection.changed.notify_waiters();
        }
        if !self.over && self.near {
            drop(state);
            return Background.spawn(Self::new(&connection, self.number, false).run());
        }
        state.connecting = None;
        if !self.over {
            // In a runtime that shuts down, the next attempt would end like this one within the same
            // poll, and a caller that waits for it would block its thread.
            state.failed(unavailable(Cause::NoRuntime));
        }
        drop(state);
        connection.changed.notify_waiters();
    }
}

/// Opens the link on the thread of this crate if all threads of the runtime that opens it block.
async fn take_over_if_blocked(connection: Weak<Connection>, number: u64, home: Runtime) {
    let is_open = || {
        let connection = connection.upgrade();
        connection.is_none_or(|it| it.state.lock().connecting != Some(number))
    };
    loop {
        sleep(LOOK).await;
        if is_open() {
            return;
        }
        if home.is_blocked(BLOCKED).await {
            break;
        }
    }
    let Some(connection) = connection.upgrade() else {
        return;
    };
    let taken = connection.state.lock().take_over(number);
    if let Some(number) = taken {
        Background.spawn(Connecting::new(&connection, number, false).run());
    }
}
