//! Keeps a lease unless another process waits for its key.

use redis::Value;

use super::arguments::kind;
use crate::backend::redis::command::call::{Calls, KeyRoute};
use crate::backend::redis::command::error::unexpected;
use crate::backend::redis::command::names::{Lease, millis};
use crate::backend::redis::command::reply::{released, transfer_terms};
use crate::backend::redis::command::send::call_with;
use crate::backend::redis::connection::Request;
use crate::backend::{BackendError, KeepRequest, Released, ReleasedOrKept, TransferTerms};

/// The outcome of [`Calls::release_or_keep`].
pub(crate) enum Passed {
    /// The lease continues, under counters from this one on.
    Kept(Option<u64>),
    /// The lease was released, unless it was to be extended only.
    Wanted {
        released: Released,
        others: u32,
        queued: bool,
        transfers: Option<TransferTerms>,
    },
    NotHeld,
}

impl Calls {
    /// Keeps the lease unless another process waits for the key. If one does, the lease is released, or with
    /// `release` unset only reported as wanted.
    ///
    /// `own_subscribers` of the channel do not count. With `None`, another process counts as waiting.
    pub(crate) async fn release_or_keep(
        &self,
        at: KeyRoute<'_>,
        request: &KeepRequest,
        own_subscribers: Option<u8>,
        release: bool,
    ) -> Result<Passed, BackendError> {
        let script = &self.scripts.release_or_keep;
        let own_subscribers = own_subscribers.map_or(-1, i64::from);
        let queue = self.queue_of(at);
        let mut command = script.evalsha(2 + usize::from(queue.is_some()), 9, 640);
        command.arg(at.body()).arg(at.fence()).arg(queue);
        command.arg(Lease(request.lease)).arg(millis(request.ttl));
        command.arg(at.channel()).arg(own_subscribers);
        command.arg(ReleasedOrKept::COUNTERS).arg(u8::from(release));
        match request.next {
            Some(next) => command.arg(Lease(next)),
            None => command.arg(""),
        };
        command.arg(kind(request.listens));
        command.arg(self.blind(at.route).unwrap_or(0));
        let sent = Request {
            is_message_first: release,
            ..script.request(&command, 1)
        };
        let reply = match call_with(script, at.route, &sent).await {
            Err(error) if error.excludes_queue() => {
                return Box::pin(self.release_scattered(at, request.lease, release)).await;
            }
            reply => reply?,
        };
        match &reply.value {
            // The next lease may have entered the queue.
            Value::Int(0) if reply.resent && release => Ok(Passed::Wanted {
                released: Released::Released,
                others: 0,
                queued: request.next.is_some(),
                transfers: None,
            }),
            Value::Int(0) => Ok(Passed::NotHeld),
            Value::Int(others @ 1..) => Ok(Passed::Wanted {
                released: Released::Released,
                others: u32::try_from(*others).unwrap_or(u32::MAX),
                queued: false,
                transfers: None,
            }),
            // The first attempt may still arrive, and would end the kept lease while it is in use.
            Value::Int(_) | Value::Nil if reply.resent && release => {
                let released = self.release_scattered(at, request.lease, release);
                Ok(match Box::pin(released).await? {
                    // The first attempt has arrived, and the next lease may have entered the queue.
                    Passed::NotHeld => Passed::Wanted {
                        released: Released::Released,
                        others: 0,
                        queued: request.next.is_some(),
                        transfers: None,
                    },
                    released => released,
                })
            }
            Value::Int(_kept) if reply.asked => {
                Box::pin(self.release_scattered(at, request.lease, release)).await
            }
            Value::Int(kept) => Ok(Passed::Kept(Some(kept.unsigned_abs()))),
            Value::Nil => Ok(Passed::Kept(None)),
            Value::Array(fields) => {
                let [Value::Int(others), outcome, Value::Int(queued), terms @ ..] = &fields[..]
                else {
                    return Err(unexpected(&reply.value));
                };
                Ok(Passed::Wanted {
                    released: released(outcome, Released::Released)?,
                    others: u32::try_from(*others).unwrap_or(u32::MAX),
                    queued: *queued > 0,
                    transfers: transfer_terms(terms),
                })
            }
            reply => Err(unexpected(reply)),
        }
    }
}
