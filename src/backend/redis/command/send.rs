//! Sends the call of a script along a route.

use std::pin::pin;

use redis::Cmd;

use super::error::CommandError;
use super::script::Script;
use crate::backend::redis::connection::{Reply, Request, Resend, Undo, after};
use crate::backend::redis::topology::Route;

/// Calls a script for one lock.
///
/// # Cancel safety
///
/// As [`Route::send`].
pub(super) fn call(
    script: &Script,
    route: &Route,
    command: &Cmd,
) -> impl Future<Output = Result<Reply, CommandError>> {
    call_with(script, route, script.request(command, 1))
}

/// Calls a script. If the server does not have it, the call is repeated with the source, which also loads
/// the script at the server that executes the call.
///
/// The reply counts as resent only if the script compares: then a holder that it does not find is gone.
///
/// # Cancel safety
///
/// As [`Route::send`].
pub(super) async fn call_with(
    script: &Script,
    route: &Route,
    request: Request<'_>,
) -> Result<Reply, CommandError> {
    let outcome = match route.send(request).await {
        Err(CommandError::NoScript { resent }) => {
            let command = &script.eval(request.command);
            after(route.send(Request { command, ..request }).await, resent)
        }
        outcome => outcome,
    };
    let compares = request.resend == Resend::Compared;
    outcome.map(|reply| Reply {
        resent: reply.resent && compares,
        ..reply
    })
}

/// Calls a script that acquires one lock, as [`call`] does. Replicas may have to acknowledge the grant.
///
/// # Cancel safety
///
/// As [`Route::acquire`].
pub(super) async fn acquire(
    script: &Script,
    route: &Route,
    command: &Cmd,
    undo: Undo<'_>,
) -> Result<Reply, CommandError> {
    let request = script.request(command, 1);
    // Pinned where it is made: `await` would move it.
    let acquired = pin!(route.acquire(request, undo));
    match acquired.await {
        Err(CommandError::NoScript { resent }) => {
            let command = &script.eval(command);
            let request = Request { command, ..request };
            after(route.acquire(request, undo).await, resent)
        }
        outcome => outcome,
    }
}
