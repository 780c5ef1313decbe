//! Keeps leases unless other processes wait for their keys.

use redis::Value;

use super::arguments::kind;
use crate::backend::redis::command::call::{Calls, KeyRoute, OVERHEAD};
use crate::backend::redis::command::error::{refusal, unexpected};
use crate::backend::redis::command::names::{Named, RedisName, millis};
use crate::backend::redis::command::reply::{Outcomes, list, released};
use crate::backend::redis::command::send::{CommandReply, call_with};
use crate::backend::redis::topology::Route;
use crate::backend::{BackendError, KeepRequest, Released, ReleasedOrKept};

/// The reply for a next lease that listens in the queue.
const LISTENS: i64 = 2;

impl Calls {
    /// Keeps each lease unless another process waits for its key. If one does, the lease is released.
    ///
    /// The subscribers of this process do not count. If they are unknown, another process counts as waiting. Leases under
    /// Redisson's counters have a call each.
    pub(crate) async fn release_or_keep(
        &self,
        route: &Route,
        leases: &[&KeepRequest],
    ) -> Outcomes<ReleasedOrKept> {
        let (script, names) = (&self.scripts.release_or_keep, &self.names);
        let with_queues = self.are_queues_allowed();
        let bodies = leases.iter().map(|it| names.body(&it.key));
        let size: usize = bodies.clone().map(RedisName::len).sum();
        let size = 3 * size + leases.len() * (2 * Named::MAX_LEN + 8 * OVERHEAD);
        let keys = 1 + (1 + usize::from(with_queues)) * leases.len();
        let mut command = script.evalsha(keys, 1 + 7 * leases.len(), size);
        command.arg(self.at(route, &leases[0].key).fence());
        for body in bodies {
            command.arg(body);
        }
        if with_queues {
            for lease in leases {
                command.arg(names.queue(&lease.key));
            }
        }
        command.arg(self.blind(route).unwrap_or(0));
        let notifier = &route.node().notifier;
        for lease in leases {
            let channel = names.channel(&lease.key).to_text();
            let own = (self.counts_all(route)).then(|| notifier.own_subscribers(&channel));
            command
                .arg(Named::exclusive(lease.lease))
                .arg(millis(lease.ttl));
            command
                .arg(&channel)
                .arg(own.flatten().map_or(-1, i64::from));
            command.arg(lease.counters);
            match lease.next {
                Some(next) => command.arg(Named::exclusive(next)),
                None => command.arg(""),
            };
            command.arg(kind(lease.listens && notifier.is_subscribed(&channel)));
        }
        let request = script.request(&command, leases.len());
        let reply = match (call_with(script, route, &request).await, leases) {
            (Err(error), [lease]) if error.excludes_queue() => {
                let at = self.at(route, &lease.key);
                return Ok(vec![
                    Box::pin(self.release_scattered(at, lease.lease)).await,
                ]);
            }
            (reply, _) => reply?,
        };
        let mut outcomes = Vec::with_capacity(leases.len());
        for (value, lease) in list(reply.value, leases.len())?.into_iter().zip(leases) {
            let at = self.at(route, &lease.key);
            let reply = CommandReply { value, ..reply };
            outcomes.push(self.released_or_kept(at, lease, reply).await);
        }
        Ok(outcomes)
    }

    async fn released_or_kept(
        &self,
        at: KeyRoute<'_>,
        lease: &KeepRequest,
        reply: CommandReply,
    ) -> Result<ReleasedOrKept, BackendError> {
        // A first attempt that arrived, of which the reply was lost: the next lease may have entered the queue.
        let ended_before = || ReleasedOrKept::passed(Released::Released, 0, lease.next.is_some());
        match reply.value {
            Value::Int(0) if reply.resent => Ok(ended_before()),
            Value::Int(0) => Ok(ReleasedOrKept::NotHeld),
            // The first attempt may still arrive, and would end the kept lease while it is in use.
            Value::Int(..=1) if reply.resent => {
                let released = self.release_scattered(at, lease.lease);
                Ok(match Box::pin(released).await? {
                    ReleasedOrKept::NotHeld => ended_before(),
                    released => released,
                })
            }
            Value::Int(..0) if reply.asked => {
                Box::pin(self.release_scattered(at, lease.lease)).await
            }
            Value::Int(counter @ ..0) => Ok(ReleasedOrKept::kept(counter.unsigned_abs())),
            Value::Int(1) => Ok(ReleasedOrKept::kept(None)),
            Value::Array(fields) => {
                let [Value::Int(others), outcome, Value::Int(queued)] = &fields[..] else {
                    return Err(unexpected(&Value::Array(fields)));
                };
                let released = released(outcome, Released::Released)?;
                let others = u32::try_from(*others).unwrap_or(u32::MAX);
                let passed = ReleasedOrKept::passed(released, others, *queued > 0);
                // Where a server does not count all subscribers, the message may be lost.
                let is_certain = *queued == LISTENS && self.counts_all(at.route);
                Ok(passed.with_listening(is_certain))
            }
            Value::ServerError(error) => Err(refusal(error)),
            reply => Err(unexpected(&reply)),
        }
    }
}
