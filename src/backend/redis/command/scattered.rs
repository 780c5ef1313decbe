//! Calls whose keys may be at several nodes.
//!
//! # A slot that is moving
//!
//! The nodes reply `TRYAGAIN` to a call with several keys unless one of them has them all. A free lock has no
//! body, so no node has all keys of its acquire until the slot has arrived. A call with one key always has one
//! node: the source if the key is there, or else the target. Hence each key gets a call of its own:
//!
//! 1. The body is acquired. All calls for it are executed at the same node, so there is one holder.
//! 2. While the lease is held, the counter is taken. The tokens of a key increase as its holders follow each
//!    other. A counter from before the acquire could be below that of a holder in between.
//! 3. With a quarantine, a missing counter, the uptime of the counter's node and the quarantine itself are
//!    checked.
//!
//! If a later step fails, a lease that is not a repeated grant is released. The place of a granted lease in the
//! queue, from before the migration, is removed by a call of its own.
//!
//! # A server that is several
//!
//! A server that rejects calls over several slots gets calls of one slot, as `topology::single` describes.

use std::num::NonZeroU16;
use std::time::Duration;

use redis::Value;

use super::call::{Calls, KeyRoute};
use super::error::{Cause, CommandError, unavailable, unexpected};
use super::names::{Named, millis};
use super::reply::{acquired, remaining, spread};
use super::send::{call, call_with};
use crate::backend::redis::connection::{Progress, Request, Resend::Repeatable};
use crate::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, LeaseId, Mode, Release, Released,
    ReleasedOrKept,
};

impl Calls {
    /// Acquires as [`acquire`](Self::acquire), with one call per key. No queue is read, which may be at another node.
    pub(super) async fn acquire_scattered(
        &self,
        at: KeyRoute<'_>,
        request: &AcquireRequest,
    ) -> Result<Acquired, BackendError> {
        let AcquireRequest {
            lease,
            ttl,
            mode,
            limit,
            ..
        } = *request;
        let shares = mode != Mode::Exclusive;
        let (script, args) = match shares {
            true => (&self.scripts.share_body, 5),
            false => (&self.scripts.acquire_body, 2),
        };
        let mut command = script.evalsha(1, args, 256);
        command.arg(at.body()).arg(shares.then_some(0));
        command.arg(Named(mode, lease)).arg(millis(ttl));
        if shares {
            command.arg(at.channel());
            command.arg(limit.map_or(0, NonZeroU16::get));
        }
        let release = || {
            let release = Release::new(at.key.clone(), lease);
            vec![self.undo_alone(&[&release])]
        };
        let call = script.acquire(&command, 1, &release, ttl);
        let reply = call_with(script, at.route, &call).await?;
        self.numbered(reply.value, at, lease).await
    }

    /// Takes the counter of a grant, whose body has `reply`.
    async fn numbered(
        &self,
        reply: Value,
        at: KeyRoute<'_>,
        lease: LeaseId,
    ) -> Result<Acquired, BackendError> {
        let is_repeated = matches!(reply, Value::Array(_));
        match acquired(reply)? {
            Acquired::Granted { .. } => {}
            busy => return Ok(busy),
        }
        let error = match self.counter(at).await {
            Ok((counter, Duration::ZERO)) => return Ok(Acquired::granted(counter)),
            Ok((_, left)) => unavailable(Cause::Quarantine(left)),
            Err(error) => error,
        };
        if is_repeated {
            // An owner may rely on the earlier grant. The caller decides whether to release it.
            return Err(BackendError::unknown(error));
        }
        let release = Release::new(at.key.clone(), lease);
        let released = self.release_all(at.route, &[&release]).await;
        match spread(released, 1).remove(0) {
            Ok(_) if error.may_have_taken_effect() => {
                Err(BackendError::refused(error.kind(), error))
            }
            Ok(_) => Err(error),
            Err(_) => Err(BackendError::unknown(error)),
        }
    }

    /// Removes a lease from the queue, and nothing else. The body may be at another node.
    pub(super) async fn leave_queue_alone(
        &self,
        at: KeyRoute<'_>,
        lease: LeaseId,
    ) -> Result<(), CommandError> {
        let mut command = redis::cmd("ZREM");
        command.arg(at.queue());
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit] {
            let name = Named(mode, lease);
            let (listens, polls) = (format!("!{name}"), format!("?{name}"));
            command.arg(name).arg(listens).arg(polls);
        }
        let request = Request::new(&command, Repeatable);
        match at.route.send(&request, &mut Progress::default()).await {
            // The queue of another type is no queue.
            Err(CommandError::Refused(error)) if error.kind() == BackendErrorKind::Conflict => {
                Ok(())
            }
            // A denied queue has no places.
            Err(error) if error.is_denied() => Ok(()),
            reply => reply.map(drop),
        }
    }

    /// Takes the counter of a route, and returns the rest of its quarantine. In a quarantine, the counter is
    /// meaningless.
    pub(super) async fn counter(&self, at: KeyRoute<'_>) -> Result<(u64, Duration), BackendError> {
        let (route, quarantine) = (at.route, at.quarantine());
        let Some(period) = at.period else {
            let counter = self.next_counter(at, None).await?;
            let counter = counter.ok_or_else(|| unexpected(&Value::Nil))?;
            return Ok((counter, Duration::ZERO));
        };
        let guarded = self.next_counter(at, Some(period)).await;
        if let Err(rejection) = &guarded
            && let Some(Cause::Quarantine(left)) = Cause::behind(rejection)
        {
            return Ok((0, *left));
        }
        if let Some(counter) = guarded? {
            let mut left = redis::cmd("PTTL");
            left.arg(quarantine);
            let request = Request::new(&left, Repeatable);
            return match route.send(&request, &mut Progress::default()).await? {
                // A self-test continues in a quarantine.
                Value::Int(_) if period == 0 => Ok((counter, Duration::ZERO)),
                Value::Int(left) => Ok((counter, remaining(left))),
                reply => Err(unexpected(&reply)),
            };
        }
        // In the order of quarantine.lua, which the period 0 ends here as well.
        let mut begin = redis::cmd("SET");
        begin.arg(quarantine).arg(1).arg("PX").arg(period);
        let request = Request::new(&begin, Repeatable);
        route.send(&request, &mut Progress::default()).await?;
        let counter = self.next_counter(at, None).await?;
        let counter = counter.ok_or_else(|| unexpected(&Value::Nil))?;
        Ok((counter, Duration::from_millis(period)))
    }

    /// With the length of a quarantine in milliseconds, returns `None` if the counter is missing, and an error
    /// if the server started within this time.
    async fn next_counter(
        &self,
        at: KeyRoute<'_>,
        period: Option<u64>,
    ) -> Result<Option<u64>, BackendError> {
        let script = &self.scripts.counter;
        let mut command = script.evalsha(1, 1, 128);
        command.arg(at.fence()).arg(period);
        match call(script, at.route, &command).await?.value {
            Value::Int(counter @ 1..) => Ok(Some(counter.unsigned_abs())),
            Value::Nil if period.is_some() => Ok(None),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Releases the lease as if another process waited for it: without a count of the subscribers, which are at the
    /// source of the slot, and without a counter.
    pub(super) async fn release_scattered(
        &self,
        at: KeyRoute<'_>,
        lease: LeaseId,
    ) -> Result<ReleasedOrKept, BackendError> {
        let release = Release::new(at.key.clone(), lease);
        let released = self.release_all(at.route, &[&release]).await;
        match spread(released, 1).remove(0)? {
            Released::NotHeld => Ok(ReleasedOrKept::NotHeld),
            _ => Ok(ReleasedOrKept::released(0)),
        }
    }
}
