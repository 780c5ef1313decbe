//! Sends the call of a script along a route.

use redis::{Cmd, Value};

use super::error::CommandError;
use super::script::Script;
use crate::backend::redis::connection::{Progress, Request, Resend};
use crate::backend::redis::topology::Route;

/// The reply to a call.
pub(super) struct CommandReply {
    pub(super) value: Value,
    /// The call was sent before, and its script compares. It may have taken effect then.
    pub(super) resent: bool,
    /// The slot is moving to the cluster node that replied.
    pub(super) asked: bool,
}

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
    let mut progress = Progress::default();
    let mut outcome = route.send(request, &mut progress).await;
    if let Err(CommandError::NoScript) = outcome {
        let command = &script.eval(request.command);
        let request = Request {
            command,
            ..*request
        };
        // Boxed, so that the usual call does not contain it.
        outcome = Box::pin(route.send(&request, &mut progress)).await;
    }
    Ok(CommandReply {
        value: outcome?,
        resent: progress.resent && request.resend == Resend::Compared,
        asked: progress.asking,
    })
}
