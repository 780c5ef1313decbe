//! Makes an exclusive lease shared.

use std::time::Duration;

use redis::Value;

use crate::backend::redis::command::call::{Calls, KeyRoute};
use crate::backend::redis::command::error::{Cause, unavailable, unexpected};
use crate::backend::redis::command::names::{Named, millis};
use crate::backend::redis::command::send::call;
use crate::backend::{BackendError, Downgraded, Renewal};

impl Calls {
    /// Makes the lease shared, and serves the waiters that may share the key.
    pub(crate) async fn downgrade(
        &self,
        at: KeyRoute<'_>,
        renewal: &Renewal,
    ) -> Result<Downgraded, BackendError> {
        let script = &self.scripts.downgrade;
        let queue = self.queue_of(at);
        let mut command = script.evalsha(2 + usize::from(queue.is_some()), 4, 640);
        command.arg(at.body()).arg(at.fence()).arg(queue);
        command
            .arg(Named::exclusive(renewal.lease))
            .arg(millis(renewal.ttl));
        command.arg(at.channel());
        command.arg(self.blind(at.route).unwrap_or(0));
        match call(script, at.route, &command).await {
            Err(error) if error.excludes_queue() => {
                Box::pin(self.downgrade_scattered(at, renewal)).await
            }
            reply => downgraded(&reply?.value),
        }
    }

    /// Takes the counter by a call of its own, and leaves the queue alone. No other lease takes a counter of this key
    /// while the lease is exclusive, so the counter may come first.
    async fn downgrade_scattered(
        &self,
        at: KeyRoute<'_>,
        renewal: &Renewal,
    ) -> Result<Downgraded, BackendError> {
        let counter = match self.counter(at).await {
            Ok((counter, Duration::ZERO)) => counter,
            Ok((_, left)) => return Err(unavailable(Cause::Quarantine(left))),
            // The lease is unchanged.
            Err(error) => return Err(BackendError::refused(error.kind(), error)),
        };
        let script = &self.scripts.downgrade_body;
        let mut command = script.evalsha(1, 4, 320);
        command.arg(at.body());
        command
            .arg(Named::exclusive(renewal.lease))
            .arg(millis(renewal.ttl));
        command.arg(at.channel()).arg(0);
        let reply = call(script, at.route, &command).await?;
        Ok(match downgraded(&reply.value)? {
            Downgraded::Shared { .. } => Downgraded::shared(counter),
            Downgraded::NotHeld => Downgraded::NotHeld,
        })
    }
}

fn downgraded(reply: &Value) -> Result<Downgraded, BackendError> {
    match reply {
        Value::Int(0) => Ok(Downgraded::NotHeld),
        Value::Int(counter @ 1..) => Ok(Downgraded::shared(counter.unsigned_abs())),
        reply => Err(unexpected(reply)),
    }
}
