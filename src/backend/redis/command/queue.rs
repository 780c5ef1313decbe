//! The calls that end a lease, or wait for a lock in its queue.
//!
//! While a slot is moving, the body of a lock and its queue may be at different nodes. Then there is no queue:
//! a lock is acquired and released as [`scattered`](super::scattered) describes, and waiters poll. The same applies
//! to a queue that the ACL denies, since its rules can permit a lock and forget its queue.

use redis::{Cmd, Value};

use super::call::{Calls, KeyRoute, OVERHEAD, note};
use super::error::{Cause, CommandError, unexpected};
use super::names::{Lease, Name, millis};
use super::reply::{Outcomes, contended, holder, released, releases};
use super::script::Script;
use super::send::{self, call};
use crate::backend::redis::connection::{Reply, Request, Undo};
use crate::backend::redis::topology::Route;
use crate::backend::{
    Acquired, BackendError, BackendErrorKind, ContendRequest, Contended, ForceReleased, Holder,
    KeepRequest, LeaseId, Release, Released, ReleasedOrKept,
};

/// What a count of subscribers includes, as `blind` in `queue.lua`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    All,
    /// The subscribers of this crate. Others may be at nodes that the node of the slot does not count.
    Ours = 1,
    Nothing,
}

/// The outcome of [`Calls::release_or_keep`].
pub(crate) enum Passed {
    /// The lease continues, under counters from this one on.
    Kept(Option<u64>),
    /// The lease was released, unless it was to be extended only.
    Wanted {
        released: Released,
        others: u32,
        queued: bool,
    },
    NotHeld,
}

impl Calls {
    fn counted(&self, route: &Route) -> Counted {
        match route.slot() {
            None => Counted::All,
            Some(_) if !route.is_in_cluster() => Counted::Nothing,
            Some(_) if self.scripts.publish.contains(&"PUBLISH") => Counted::Ours,
            Some(_) => Counted::All,
        }
    }

    /// Returns the name of a queue that this user may use.
    fn queue_of<'a>(&self, at: KeyRoute<'a>) -> Option<Name<'a>> {
        self.are_queues_allowed().then(|| at.queue())
    }

    /// Returns the argument for an unusual count. The usual release is shorter without.
    fn blind(&self, route: &Route) -> Option<u8> {
        let counted = self.counted(route);
        (counted != Counted::All).then_some(counted as u8)
    }

    /// Returns the name of the counter for the messages of transfers, if these are grants: the messages reach the
    /// waiters for certain, and a grant requires nothing else.
    fn fence_of_transfers(&self, route: &Route) -> Option<Name<'_>> {
        let are_grants = self.scripts.are_transfers_numbered && self.counted(route) == Counted::All;
        are_grants.then(|| self.names.fence(route.slot()))
    }

    /// Contends for a key in the order of its queue.
    ///
    /// # Cancel safety
    ///
    /// As [`Backend::contend`](crate::backend::Backend::contend), it must not be dropped.
    pub(crate) async fn contend(
        &self,
        at: KeyRoute<'_>,
        request: &ContendRequest,
    ) -> Result<Contended, BackendError> {
        self.contend_outside(self.quarantine_millis(), at, request)
            .await
    }

    /// Contends for the key of a self-test, also in a quarantine.
    pub(crate) async fn try_contend(
        &self,
        at: KeyRoute<'_>,
        request: &ContendRequest,
    ) -> Result<Contended, BackendError> {
        let period = self.scripts.quarantine.as_ref().map(|_| 0);
        self.contend_outside(period, at, request).await
    }

    /// `period` is the length of a quarantine in milliseconds.
    async fn contend_outside(
        &self,
        period: Option<u64>,
        at: KeyRoute<'_>,
        request: &ContendRequest,
    ) -> Result<Contended, BackendError> {
        let ContendRequest {
            lease,
            ttl,
            listens,
            ..
        } = *request;
        let script = &self.scripts.contend;
        let (body, queue, fence) = (at.body(), at.queue(), at.fence());
        let quarantine = period.map(|_| at.quarantine());
        let more = usize::from(period.is_some());
        let size = body.len() + queue.len() + 2 * fence.len() + at.channel().len();
        let mut command = script.evalsha(3 + more, 5 + more, size + Lease::MAX_LEN + 4 * OVERHEAD);
        command.arg(body).arg(queue).arg(fence).arg(quarantine);
        command.arg(Lease(lease)).arg(millis(ttl)).arg(at.channel());
        command.arg(kind(listens));
        command.arg(self.blind(at.route).unwrap_or(0)).arg(period);
        let leave = || self.undo_one(&self.scripts.leave, at, lease);
        let undo = Undo {
            commands: &leave,
            limit: ttl,
        };
        let outcome = send::acquire(script, at.route, &command, undo).await;
        match outcome {
            Err(CommandError::Scattered(_)) if at.route.slot().is_none() => {
                at.route.mark_sharded();
                let route = &at.route.in_slot(self.names.slot(at.key));
                let at = self.at(route, at.key);
                Box::pin(self.contend_outside(period, at, request)).await
            }
            Err(CommandError::Scattered(_)) => {
                let acquired = Box::pin(self.acquire_scattered(period, at, lease, ttl)).await;
                note(at, acquired.as_ref());
                if let Ok(Acquired::Granted { .. }) = &acquired {
                    // If this fails, the place expires.
                    drop(self.leave_queue_alone(at, lease).await);
                }
                acquired.map(Contended::from)
            }
            Err(error) if error.is_denied() => {
                let acquired = Box::pin(self.acquire_scattered(period, at, lease, ttl)).await;
                note(at, acquired.as_ref());
                if acquired.is_ok() {
                    self.log_denied_queue();
                }
                acquired.map(Contended::from)
            }
            Err(error) => {
                if let CommandError::Refused(error) = &error {
                    note(at, Err(error));
                }
                Err(error.into())
            }
            Ok(reply) => {
                let outcome = contended(reply.value);
                match &outcome {
                    Ok(Contended::Granted { counter }) => {
                        note(at, Ok(&Acquired::granted(*counter)));
                    }
                    // The server wrote the place and the counter, so it can grant.
                    Ok(Contended::Waiting {
                        transfers: Some(terms),
                        ..
                    }) => note(at, Ok(&Acquired::granted(terms.counter))),
                    Ok(Contended::Waiting { .. }) => {}
                    Err(error) => note(at, Err(error)),
                }
                outcome
            }
        }
    }

    /// Returns `true` if the server denies a command of the queues. Any other failure shows elsewhere.
    pub(crate) async fn are_queues_denied(&self, at: KeyRoute<'_>) -> bool {
        let script = &self.scripts.queue_trial;
        let mut command = script.evalsha(1, 0, 256);
        command.arg(at.queue());
        match call(script, at.route, (&command).into()).await {
            Ok(reply) => reply.value == Value::Int(1),
            // The name of the queue is denied, or an earlier error shows the reason again.
            Err(error) => BackendError::from(error).kind() == BackendErrorKind::Misconfigured,
        }
    }

    pub(crate) async fn leave_all(&self, route: &Route, leases: &[&Release]) -> Outcomes<Released> {
        if !self.are_queues_allowed() {
            return self.release_all(route, leases).await;
        }
        match (
            self.end_all(&self.scripts.leave, route, leases).await,
            leases,
        ) {
            (Err(CommandError::Scattered(_)), [release]) => {
                let at = self.at(route, &release.key);
                self.leave_queue_alone(at, release.lease).await?;
                self.release_all(route, leases).await
            }
            (Err(error), [_]) if error.is_denied() => self.release_all(route, leases).await,
            (outcomes, _) => outcomes,
        }
    }

    pub(crate) async fn release_all(
        &self,
        route: &Route,
        leases: &[&Release],
    ) -> Outcomes<Released> {
        let script = &self.scripts.release;
        match (self.end_all(script, route, leases).await, leases) {
            (Err(error), [_]) if error.excludes_queue() => {
                let command = self.ending_alone(leases);
                let reply = call(script, route, (&command).into()).await?;
                if error.is_denied() {
                    self.log_denied_queue();
                }
                ended(reply, 1)
            }
            (outcomes, _) => outcomes,
        }
    }

    async fn end_all(
        &self,
        script: &Script,
        route: &Route,
        leases: &[&Release],
    ) -> Outcomes<Released> {
        let command = self.ending(script, route, leases);
        let request = Request {
            called: Some(script.called(leases.len())),
            ..(&command).into()
        };
        let reply = call(script, route, request).await?;
        ended(reply, leases.len())
    }

    /// Returns a call of `release` or `leave`.
    fn ending(&self, script: &Script, route: &Route, leases: &[&Release]) -> Cmd {
        let fence = self.fence_of_transfers(route);
        let fence = self.are_queues_allowed().then_some(fence);
        let mut command = self.ending_with(script, leases, fence);
        command.arg(self.blind(route));
        command
    }

    /// Returns a release without the queues, which may be at another node.
    fn ending_alone(&self, leases: &[&Release]) -> Cmd {
        self.ending_with(&self.scripts.release, leases, None)
    }

    /// `with_queues` has the counter for the messages of transfers, if they carry one.
    fn ending_with(
        &self,
        script: &Script,
        leases: &[&Release],
        with_queues: Option<Option<Name<'_>>>,
    ) -> Cmd {
        let names = &self.names;
        let bodies = leases.iter().map(|it| names.body(&it.key));
        let queued = leases.iter().filter(|_| with_queues.is_some());
        let keys = bodies.chain(queued.map(|it| names.queue(&it.key)));
        let keys = keys.chain(with_queues.flatten());
        let channels = leases.iter().map(|it| names.channel(&it.key).len());
        let longest = channels.max();
        let extra = Lease::MAX_LEN + longest.unwrap_or(0);
        let mut command = script.batch(keys, extra / 2);
        for release in leases {
            command
                .arg(Lease(release.lease))
                .arg(names.channel(&release.key));
        }
        command
    }

    /// Returns the call of `release` or `leave` that undoes an acquire, and a release without the queues for a
    /// server that rejects it. Both contain the source, because the server may not have the script.
    pub(super) fn undo(&self, script: &Script, route: &Route, leases: &[&Release]) -> Vec<Cmd> {
        let undo = script.eval(&self.ending(script, route, leases));
        vec![undo, self.undo_alone(leases)]
    }

    /// Returns the [`undo`](Self::undo) of one acquire.
    pub(super) fn undo_one(&self, script: &Script, at: KeyRoute<'_>, lease: LeaseId) -> Vec<Cmd> {
        let release = Release::new(at.key.clone(), lease);
        self.undo(script, at.route, &[&release])
    }

    /// Returns the release that undoes acquires of bodies alone.
    pub(crate) fn undo_alone(&self, leases: &[&Release]) -> Cmd {
        let script = &self.scripts.release;
        script.eval(&self.ending_alone(leases))
    }

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
        let reply = match call(script, at.route, (&command).into()).await {
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
            }),
            Value::Int(0) => Ok(Passed::NotHeld),
            Value::Int(others @ 1..) => Ok(Passed::Wanted {
                released: Released::Released,
                others: u32::try_from(*others).unwrap_or(u32::MAX),
                queued: false,
            }),
            Value::Int(_kept) if reply.asked => {
                Box::pin(self.release_scattered(at, request.lease, release)).await
            }
            Value::Int(kept) => Ok(Passed::Kept(Some(kept.unsigned_abs()))),
            Value::Nil => Ok(Passed::Kept(None)),
            Value::Array(fields) => {
                let [Value::Int(others), outcome, Value::Int(queued)] = &fields[..] else {
                    return Err(unexpected(&reply.value));
                };
                Ok(Passed::Wanted {
                    released: released(outcome, Released::Released)?,
                    others: u32::try_from(*others).unwrap_or(u32::MAX),
                    queued: *queued == 1,
                })
            }
            reply => Err(unexpected(reply)),
        }
    }

    pub(crate) async fn inspect(&self, at: KeyRoute<'_>) -> Result<Option<Holder>, BackendError> {
        let script = &self.scripts.inspect;
        let with_queue = |queue: Option<_>| {
            let mut command = script.evalsha(1 + usize::from(queue.is_some()), 0, 256);
            command.arg(at.body()).arg(queue);
            command
        };
        let reply = match call(script, at.route, (&with_queue(self.queue_of(at))).into()).await {
            Err(error) if error.excludes_queue() => {
                call(script, at.route, (&with_queue(None)).into()).await?
            }
            reply => reply?,
        };
        holder(reply.value)
    }

    /// Releases the lock of its present holder.
    pub(crate) async fn force_release(
        &self,
        at: KeyRoute<'_>,
    ) -> Result<ForceReleased, BackendError> {
        match self.inspect(at).await? {
            None => Ok(ForceReleased::NotHeld),
            Some(holder) if holder.id.is_empty() => Err(BackendError::refused(
                BackendErrorKind::Misconfigured,
                Cause::UnreadableHolder,
            )),
            Some(holder) => self.release_holder(at, &holder.id).await,
        }
    }

    /// Releases the lock of `holder`, and of no other.
    pub(crate) async fn release_holder(
        &self,
        at: KeyRoute<'_>,
        holder: &str,
    ) -> Result<ForceReleased, BackendError> {
        let script = &self.scripts.force_release;
        let with_queue = |queue: Option<_>| {
            let fence = self.fence_of_transfers(at.route);
            let fence = fence.filter(|_| queue.is_some());
            let keys = 1 + usize::from(queue.is_some()) + usize::from(fence.is_some());
            let mut command = script.evalsha(keys, 3, 512);
            command.arg(at.body()).arg(queue).arg(fence);
            command.arg(holder).arg(at.channel());
            command.arg(self.blind(at.route));
            command
        };
        let reply = match call(script, at.route, (&with_queue(self.queue_of(at))).into()).await {
            Err(error) if error.excludes_queue() => {
                call(script, at.route, (&with_queue(None)).into()).await?
            }
            reply => reply?,
        };
        match reply.value {
            Value::Int(1..) => Ok(ForceReleased::Released),
            Value::Int(0) if reply.resent => Ok(ForceReleased::Released),
            Value::Int(0) => Ok(ForceReleased::NotHeld),
            reply => Err(unexpected(&reply)),
        }
    }
}

fn ended(reply: Reply, leases: usize) -> Outcomes<Released> {
    let absent = match reply.resent {
        true => Released::Released,
        false => Released::NotHeld,
    };
    releases(reply.value, leases, absent)
}

fn kind(listens: bool) -> &'static str {
    match listens {
        true => "!",
        false => "?",
    }
}
