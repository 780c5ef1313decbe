//! Acquires and renews shared leases and permits.

use std::num::NonZeroU16;

use redis::Cmd;

use super::call::{Calls, KeyRoute, OVERHEAD, note, outcome};
use super::error::CommandError;
use super::names::{Named, RedisName, millis};
use super::reply::{Outcomes, each, list, renewed, spread};
use super::send::{CommandReply, call_with};
use crate::backend::redis::topology::Route;
use crate::backend::{AcquireRequest, Acquired, BackendError, Mode, Renewal, Renewed};

/// The most shared leases and permits that one call renews. 50 take the server 0.3 ms, in which it serves no other client.
const MOST_SHARED: usize = 50;

impl Calls {
    /// Acquires a key in the mode of the request.
    ///
    /// # Cancel safety
    ///
    /// As [`Backend::try_acquire`](crate::backend::Backend::try_acquire), it must not be dropped.
    pub(crate) async fn acquire(
        &self,
        at: KeyRoute<'_>,
        request: &AcquireRequest,
    ) -> Result<Acquired, BackendError> {
        let AcquireRequest {
            lease, ttl, mode, ..
        } = *request;
        // Boxed, so that an acquire in a shared call does not contain the kilobytes of a single one.
        let reply = match mode {
            Mode::Exclusive => Box::pin(self.call_exclusive(at, lease, ttl)).await,
            Mode::Shared | Mode::Permit => Box::pin(self.call_shared(at, request)).await,
        };
        match reply {
            // One of the keys is at another node while a slot moves, or the queue of shared leases is denied.
            Err(error)
                if matches!(error, CommandError::Scattered(_))
                    || mode != Mode::Exclusive && error.is_denied() =>
            {
                if let Some(route) = &at.sharded_by(&error) {
                    return Box::pin(self.acquire(KeyRoute { route, ..at }, request)).await;
                }
                let scattered = Box::pin(self.acquire_scattered(at, request)).await;
                note(at, scattered.as_ref());
                scattered
            }
            reply => outcome(at, reply),
        }
    }

    /// Calls the script that acquires a key for a shared lease or a permit.
    async fn call_shared(
        &self,
        at: KeyRoute<'_>,
        request: &AcquireRequest,
    ) -> Result<CommandReply, CommandError> {
        let AcquireRequest { lease, ttl, .. } = *request;
        let (script, period) = (&self.scripts.share, at.period);
        let mut command = self.sharing(at.route, std::slice::from_ref(request), at.quarantine());
        command.arg(period);
        let release = || self.undo_one(&self.scripts.release, at, lease);
        let call = script.acquire(&command, 1, &release, ttl);
        call_with(script, at.route, &call).await
    }

    /// Acquires several keys of one slot for shared leases or permits, without a quarantine.
    pub(crate) async fn share_all(
        &self,
        route: &Route,
        acquires: &[AcquireRequest],
    ) -> Outcomes<Acquired> {
        if acquires.is_empty() {
            return Ok(Vec::new());
        }
        let command = self.sharing(route, acquires, None);
        self.acquire_by(&self.scripts.share, route, &command, acquires)
            .await
    }

    /// Returns a call of `share` for at least one key, without the length of a quarantine.
    fn sharing(
        &self,
        route: &Route,
        acquires: &[AcquireRequest],
        quarantine: Option<RedisName<'_>>,
    ) -> Cmd {
        let Self { names, scripts, .. } = self;
        let (count, fence) = (acquires.len(), self.at(route, &acquires[0].key).fence());
        let keys = 2 * count + 1 + usize::from(quarantine.is_some());
        let bodies = acquires.iter().map(|it| names.body(&it.key));
        let len: usize = bodies.clone().map(RedisName::len).sum();
        // The body is a part of the other names.
        let size = 3 * len + 2 * fence.len() + count * (Named::MAX_LEN + 8 * OVERHEAD);
        let mut command = scripts.share.evalsha(keys, 4 * count + 2, size);
        for body in bodies {
            command.arg(body);
        }
        for acquire in acquires {
            command.arg(names.queue(&acquire.key));
        }
        command.arg(fence).arg(quarantine);
        command.arg(self.blind(route).unwrap_or(0));
        for acquire in acquires {
            let AcquireRequest { mode, lease, .. } = *acquire;
            command.arg(Named(mode, lease)).arg(millis(acquire.ttl));
            command.arg(names.channel(&acquire.key));
            command.arg(acquire.limit.map_or(0, NonZeroU16::get));
        }
        command
    }

    /// Renews leases of one slot, which all are exclusive, or none.
    pub(crate) async fn renew_all(
        &self,
        route: &Route,
        renewals: &[&Renewal],
    ) -> Outcomes<Renewed> {
        match renewals.first() {
            Some(first) if first.mode != Mode::Exclusive => {
                self.renew_shared_all(route, renewals).await
            }
            _ => self.renew_exclusive(route, renewals).await,
        }
    }

    /// Renews shared leases and permits of one slot.
    async fn renew_shared_all(&self, route: &Route, renewals: &[&Renewal]) -> Outcomes<Renewed> {
        if let Some((first, rest)) = renewals.split_at_checked(MOST_SHARED)
            && !rest.is_empty()
        {
            // One after the other: the server runs all commands that it has read from a client before others. A failure
            // ends both, so that a lost reply delays the others no longer than in one call.
            let mut renewed = self.renew_shared(route, first, true).await?;
            let of_rest = Box::pin(self.renew_shared_all(route, rest)).await;
            renewed.extend(of_call(of_rest, rest.len())?);
            return Ok(renewed);
        }
        match (self.renew_shared(route, renewals, true).await, renewals) {
            // The queue is at another node while a slot moves, or denied.
            (Err(error), [_]) if error.excludes_queue() => {
                self.renew_shared(route, renewals, false).await
            }
            (outcomes, _) => outcomes,
        }
    }

    async fn renew_shared(
        &self,
        route: &Route,
        renewals: &[&Renewal],
        with_queues: bool,
    ) -> Outcomes<Renewed> {
        let script = &self.scripts.renew_shared;
        let names = &self.names;
        let bodies = renewals.iter().map(|it| names.body(&it.key));
        let queued = renewals.iter().filter(|_| with_queues);
        let keys = bodies.chain(queued.map(|it| names.queue(&it.key)));
        let channels = renewals.iter().map(|it| names.channel(&it.key).len());
        let extra = Named::MAX_LEN + OVERHEAD + channels.max().unwrap_or(0);
        let mut command = script.batch(keys, extra);
        command.arg(self.blind(route).unwrap_or(0));
        for renewal in renewals {
            let Renewal { mode, lease, .. } = **renewal;
            command.arg(Named(mode, lease)).arg(millis(renewal.ttl));
            command.arg(names.channel(&renewal.key));
        }
        let request = script.request(&command, renewals.len());
        let reply = call_with(script, route, &request).await?;
        Ok(each(list(reply.value, renewals.len())?, renewed))
    }
}

/// Returns the outcome of each key, because the failure of one call does not concern the keys of another. After a rejection
/// that may spare keys, the caller sends one call per key, which may repeat a renewal that succeeded.
fn of_call(outcomes: Outcomes<Renewed>, keys: usize) -> Outcomes<Renewed> {
    match outcomes {
        Err(error) if error.may_spare_keys() => Err(error),
        outcomes => Ok(spread(outcomes, keys)),
    }
}
