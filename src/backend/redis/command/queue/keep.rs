//! Keeps a lease unless another process waits for its key.

use redis::Value;

use super::arguments::kind;
use crate::backend::redis::command::call::{Calls, KeyRoute};
use crate::backend::redis::command::error::unexpected;
use crate::backend::redis::command::names::{Named, millis};
use crate::backend::redis::command::reply::released;
use crate::backend::redis::command::send::call;
use crate::backend::{BackendError, KeepRequest, Released, ReleasedOrKept};

/// The reply for a next lease that listens in the queue.
const LISTENS: i64 = 2;

impl Calls {
    /// Keeps the lease unless another process waits for the key. If one does, the lease is released.
    ///
    /// `own_subscribers` of the channel do not count. With `None`, another process counts as waiting.
    pub(crate) async fn release_or_keep(
        &self,
        at: KeyRoute<'_>,
        request: &KeepRequest,
        own_subscribers: Option<u8>,
    ) -> Result<ReleasedOrKept, BackendError> {
        let script = &self.scripts.release_or_keep;
        let own_subscribers = own_subscribers.map_or(-1, i64::from);
        let queue = self.queue_of(at);
        let mut command = script.evalsha(2 + usize::from(queue.is_some()), 8, 640);
        command.arg(at.body()).arg(at.fence()).arg(queue);
        command
            .arg(Named::exclusive(request.lease))
            .arg(millis(request.ttl));
        command.arg(at.channel()).arg(own_subscribers);
        command.arg(request.counters);
        match request.next {
            Some(next) => command.arg(Named::exclusive(next)),
            None => command.arg(""),
        };
        command.arg(kind(request.listens));
        command.arg(self.blind(at.route).unwrap_or(0));
        let reply = match call(script, at.route, &command).await {
            Err(error) if error.excludes_queue() => {
                return Box::pin(self.release_scattered(at, request.lease)).await;
            }
            reply => reply?,
        };
        // A first attempt that arrived, of which the reply was lost: the next lease may have entered the queue.
        let ended_before = || ReleasedOrKept::passed(Released::Released, 0, request.next.is_some());
        match &reply.value {
            Value::Int(0) if reply.resent => Ok(ended_before()),
            Value::Int(0) => Ok(ReleasedOrKept::NotHeld),
            // The first attempt may still arrive, and would end the kept lease while it is in use.
            Value::Int(..0) | Value::Nil if reply.resent => {
                let released = self.release_scattered(at, request.lease);
                Ok(match Box::pin(released).await? {
                    ReleasedOrKept::NotHeld => ended_before(),
                    released => released,
                })
            }
            Value::Int(..0) if reply.asked => {
                Box::pin(self.release_scattered(at, request.lease)).await
            }
            Value::Int(kept @ ..0) => Ok(ReleasedOrKept::kept(kept.unsigned_abs())),
            Value::Nil => Ok(ReleasedOrKept::kept(None)),
            Value::Array(fields) => {
                let [Value::Int(others), outcome, Value::Int(queued)] = &fields[..] else {
                    return Err(unexpected(&reply.value));
                };
                let released = released(outcome, Released::Released)?;
                let others = u32::try_from(*others).unwrap_or(u32::MAX);
                let passed = ReleasedOrKept::passed(released, others, *queued > 0);
                // Where a server does not count all subscribers, the message may be lost.
                let is_certain = *queued == LISTENS && self.counts_all(at.route);
                Ok(passed.with_listening(is_certain))
            }
            reply => Err(unexpected(reply)),
        }
    }
}
