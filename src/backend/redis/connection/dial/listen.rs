//! Opens connections for subscriptions.

use redis::aio::MultiplexedConnection;
use redis::{Client, PushInfo};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::opening::open_at;
use crate::backend::BackendError;
use crate::backend::redis::command::not_connected;
use crate::backend::redis::connection::{Locate, Target, Visit};

/// A connection for subscriptions, and the push messages that its receiver left. Its end is one of them.
pub(crate) struct Messages {
    pub(crate) connection: MultiplexedConnection,
    /// The address of the server that it leads to.
    pub(crate) address: String,
    pub(crate) pushed: UnboundedReceiver<PushInfo>,
    pub(crate) visit: Visit,
}

/// Opens a connection for subscriptions. The caller sets the time limit.
///
/// The task that drives the connection calls `receive` with each push message, which must not block. The messages for
/// which it returns `false` are left to the caller.
///
/// # Cancel safety
///
/// If dropped, a connection that was being opened is closed.
pub(crate) async fn listen(
    server: &dyn Locate,
    again: bool,
    receive: impl Fn(&PushInfo) -> bool + Clone + Send + Sync + 'static,
) -> Result<Messages, BackendError> {
    let open = |target: Target| {
        let receive = receive.clone();
        async move {
            let target = target.with_login().await?;
            let (info, config) = target.for_messages().settings();
            let client = Client::open(info).map_err(not_connected)?;
            let (sender, pushed) = unbounded_channel();
            let config = config.set_push_sender(move |message: PushInfo| {
                let is_left = !receive(&message);
                // A caller that is gone needs no messages.
                is_left.then(|| sender.send(message)).transpose().map(drop)
            });
            let connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(not_connected)?;
            Ok((connection, pushed))
        }
    };
    let (connection, address, pushed, visit) = open_at(server, again, open).await?;
    Ok(Messages {
        connection,
        address,
        pushed,
        visit,
    })
}
