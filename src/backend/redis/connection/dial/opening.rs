//! Opens a connection to the server that has the locks, which may move in the meantime.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;

use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, check, entry, not_connected, unavailable};
use crate::backend::redis::connection::{Locate, ROLE, Target, Visit, address::Address};

/// A connection, the address of the server that it leads to, and what opened it.
pub(super) type Opened<T> = (MultiplexedConnection, String, T, Visit);

/// Opens a connection to the server, and to the next one if the server moves in the meantime. The
/// caller sets the time limit.
///
/// # Cancel safety
///
/// If dropped, a connection that was being opened is closed.
pub(super) async fn open_at<T, F>(
    server: &dyn Locate,
    again: bool,
    open: impl Fn(Target) -> F,
) -> Result<Opened<T>, BackendError>
where
    F: Future<Output = Result<(MultiplexedConnection, T), BackendError>>,
{
    let mut target = server.locate().await?;
    loop {
        let opening = async {
            let visit = admitted(&Address::named(&target.address), again).await?;
            let (connection, with) = open(target.clone()).await?;
            let connection = confirmed(connection, &visit, server.can_move(), again).await?;
            Ok((connection, target.address.clone(), with, visit))
        };
        tokio::select! {
            opened = opening => {
                // The server may have moved while the connection was being opened. While most
                // sentinels are silent, the rest may name the previous primary.
                let opened = match server.has_left(&target.address) {
                    true => Err(unavailable(Cause::NotPrimary)),
                    false => opened,
                };
                return match server.can_move() {
                    true => opened.map_err(|error| unusable(target.address.clone(), error)),
                    false => opened,
                };
            }
            next = server.moved(&target.address) => target = next,
        }
    }
}

/// Adds the address to the error: the log names only the service. No error of opening a connection
/// may have taken effect.
fn unusable(address: String, source: BackendError) -> BackendError {
    BackendError::refused(source.kind(), Cause::Primary { address, source })
}

pub(super) async fn admitted(address: &Arc<Address>, again: bool) -> Result<Visit, BackendError> {
    match again {
        true => address.admit().await,
        false => Ok(address.visit()),
    }
}

/// Returns the connection if its server confirms that it is the primary, where it can change. A server
/// that does not confirm it was the primary before, or will be. In doubt, it is enough that none denies it: a proxy may
/// report no role.
pub(super) async fn confirmed(
    mut connection: MultiplexedConnection,
    visit: &Visit,
    can_move: bool,
    again: bool,
) -> Result<MultiplexedConnection, BackendError> {
    if !(can_move || again && visit.is_in_doubt()) {
        return Ok(connection);
    }
    let reply = connection.send_packed_command(&redis::cmd(ROLE)).await;
    let role = match check(reply.map_err(not_connected)?) {
        Ok(reply) => entry(&reply, "role"),
        Err(error) if can_move => return Err(error.into()),
        Err(_) => None,
    };
    match role.as_deref() {
        Some("master") => Ok(connection),
        None if !can_move => Ok(connection),
        _ => {
            visit.misled();
            Err(unavailable(Cause::NotPrimary))
        }
    }
}
