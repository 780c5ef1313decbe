//! Sends the call of a script along a route.

use redis::Cmd;

use super::error::CommandError;
use super::script::Script;
use crate::backend::redis::connection::{CommandReply, Request, Resend, after};
use crate::backend::redis::topology::Route;

/// Calls a script for one lock.
///
/// # Cancel safety
///
/// As [`Route::send`].
pub(super) async fn call(
    script: &Script,
    route: &Route,
    command: &Cmd,
) -> Result<CommandReply, CommandError> {
    call_with(script, route, &script.request(command, 1)).await
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
    request: &Request<'_>,
) -> Result<CommandReply, CommandError> {
    let mut outcome = route.send(request).await;
    if let Err(CommandError::NoScript { resent }) = outcome {
        let command = &script.eval(request.command);
        let request = Request {
            command,
            ..*request
        };
        // Boxed, so that the usual call does not contain it.
        outcome = after(Box::pin(route.send(&request)).await, resent);
    }
    if let Ok(reply) = &mut outcome {
        reply.resent &= request.resend == Resend::Compared;
    }
    outcome
}
