//! Waits for a lock in its queue.

use std::num::NonZeroU16;
use std::time::Duration;

use super::arguments::kind;
use crate::backend::redis::command::call::{Calls, KeyRoute, OVERHEAD, note, outcome};
use crate::backend::redis::command::error::{is_denial, is_out_of_memory};
use crate::backend::redis::command::names::{Named, millis};
use crate::backend::redis::command::reply::{contended, rejected_place};
use crate::backend::redis::command::send::{call, call_with};
use crate::backend::{AcquireRequest, Acquired, BackendError, BackendErrorKind, Contended};

impl Calls {
    /// Contends for a key in the order of its queue.
    ///
    /// # Cancel safety
    ///
    /// As [`Backend::contend`](crate::backend::Backend::contend), it must not be dropped.
    pub(crate) async fn contend(
        &self,
        at: KeyRoute<'_>,
        request: &AcquireRequest,
    ) -> Result<Contended, BackendError> {
        let AcquireRequest {
            lease,
            ttl,
            listens,
            mode,
            limit,
            ..
        } = *request;
        let (script, period) = (&self.scripts.contend, at.period);
        let (body, queue, fence) = (at.body(), at.queue(), at.fence());
        let more = usize::from(period.is_some());
        let size = body.len() + queue.len() + 2 * fence.len() + at.channel().len();
        let args = 5 + more + usize::from(limit.is_some());
        let mut command = script.evalsha(3 + more, args, size + Named::MAX_LEN + 4 * OVERHEAD);
        command.arg(body).arg(queue).arg(fence).arg(at.quarantine());
        command.arg(Named(mode, lease));
        command.arg(millis(ttl)).arg(at.channel());
        command.arg(kind(listens));
        command.arg(self.blind(at.route).unwrap_or(0));
        command.arg(limit.map(NonZeroU16::get)).arg(period);
        let leave = || self.undo_one(&self.scripts.leave, at, lease);
        let call = script.acquire(&command, 1, &leave, ttl);
        match call_with(script, at.route, &call).await {
            Err(error) if error.excludes_queue() => {
                if let Some(route) = &at.sharded_by(&error) {
                    return Box::pin(self.contend(KeyRoute { route, ..at }, request)).await;
                }
                let acquired = Box::pin(self.acquire_scattered(at, request)).await;
                note(at, acquired.as_ref());
                match &acquired {
                    Ok(_) if error.is_denied() => self.log_denied_queue(),
                    // If this fails, the place expires.
                    Ok(Acquired::Granted { .. }) => drop(self.leave_queue_alone(at, lease).await),
                    _ => {}
                }
                acquired.map(Contended::of)
            }
            Err(error) => outcome(at, Err(error)).map(Contended::of),
            Ok(reply) => {
                let outcome = match rejected_place(&reply.value) {
                    Some((left, error)) => self.without_place(left, error),
                    None => contended(reply.value),
                };
                match &outcome {
                    Ok(Contended::Granted { counter }) => {
                        note(at, Ok(&Acquired::granted(*counter)));
                    }
                    // The server wrote the place, so it can grant, unless a grant requires more.
                    Ok(Contended::Waiting {
                        queued: Some(_), ..
                    }) if period.is_none() && at.route.node().replicas.is_none() => {
                        at.route.node().outage.end_for_any();
                    }
                    Ok(Contended::Waiting { .. }) => {}
                    Err(error) => note(at, Err(error)),
                }
                outcome
            }
        }
    }

    /// Returns the outcome for a lease outside the queue, which rejected it with `error`.
    fn without_place(
        &self,
        left: Duration,
        error: BackendError,
    ) -> Result<Contended, BackendError> {
        match error.kind() {
            // The server would also reject the release of the holder, so the time until its expiry shows nothing.
            BackendErrorKind::Unavailable if !is_out_of_memory(&error) => return Err(error),
            BackendErrorKind::Misconfigured if is_denial(&error) => self.log_denied_queue(),
            BackendErrorKind::Misconfigured
            | BackendErrorKind::Unavailable
            | BackendErrorKind::Conflict
            | BackendErrorKind::Unsupported => {}
        }
        Ok(Contended::waiting(left, None))
    }

    /// Returns `true` if the server denies a command of the queues. Any other failure shows elsewhere.
    pub(crate) async fn are_queues_denied(&self, at: KeyRoute<'_>) -> bool {
        let script = &self.scripts.queue_trial;
        let mut command = script.evalsha(1, 0, 256);
        command.arg(at.queue());
        match call(script, at.route, &command).await {
            Ok(_) => false,
            Err(error) => is_denial(&error.into()),
        }
    }
}
