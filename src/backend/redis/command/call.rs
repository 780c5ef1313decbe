//! Typed calls of the scripts, sent along routes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Cmd;

use super::error::{CommandError, concerns_all_keys};
use super::names::{Named, Names, RedisName, millis};
use super::reply::{self, Outcomes, acquired, each, list, renewed};
use super::script::{Script, Scripts};
use super::send::{CommandReply, call_with};
use crate::LockKey;
use crate::backend::outage::Outage;
use crate::backend::redis::topology::Route;
use crate::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Fence, LeaseId, Mode, Release,
    Renewal, Renewed,
};

/// The size of `*n`, `$n`, the line ends of an argument and a number.
pub(super) const OVERHEAD: usize = 16;

/// The calls of a backend, under its names.
pub(crate) struct Calls {
    pub(crate) names: Names,
    pub(crate) scripts: Scripts,
    /// The user lacks a permission for the queues of waiters. The self-test finds out.
    queues_denied: AtomicBool,
    /// It was logged that a queue is denied whose lock is permitted.
    #[cfg(feature = "tracing")]
    denial_logged: AtomicBool,
}

/// A key and its route.
#[derive(Clone, Copy)]
pub(crate) struct KeyRoute<'a> {
    pub(crate) route: &'a Route,
    pub(crate) key: &'a LockKey,
    /// The length of a quarantine in milliseconds, 0 for a self-test. `None` without a quarantine.
    pub(super) period: Option<u64>,
    pub(super) names: &'a Names,
}

impl<'a> KeyRoute<'a> {
    pub(super) fn body(self) -> RedisName<'a> {
        self.names.body(self.key)
    }

    pub(super) fn queue(self) -> RedisName<'a> {
        self.names.queue(self.key)
    }

    pub(super) fn channel(self) -> RedisName<'a> {
        self.names.channel(self.key)
    }

    pub(crate) fn fence(self) -> RedisName<'a> {
        if self.names.of_redisson {
            self.names.token(self.key)
        } else {
            self.names.fence(self.route.slot())
        }
    }

    /// Returns the key of the quarantine, if there is one.
    pub(super) fn quarantine(self) -> Option<RedisName<'a>> {
        let slot = self.route.slot();
        self.period.map(|_| self.names.quarantine(slot))
    }

    /// Returns the same for a self-test, which continues in a quarantine.
    pub(crate) fn in_self_test(self) -> Self {
        Self {
            period: self.period.map(|_| 0),
            ..self
        }
    }

    /// Returns the route of the key if this rejection of a call shows that the server rejects calls over several slots.
    pub(super) fn sharded_by(self, error: &CommandError) -> Option<Route> {
        let is_new = self.route.slot().is_none() && error.spans_slots();
        is_new.then(|| self.route.sharded(self.names.slot(self.key)))
    }
}

impl Calls {
    pub(crate) fn new(names: Names, scripts: Scripts) -> Self {
        Self {
            names,
            scripts,
            queues_denied: AtomicBool::new(false),
            #[cfg(feature = "tracing")]
            denial_logged: AtomicBool::new(false),
        }
    }

    /// Returns `true` unless a server denied the commands of the queues.
    pub(crate) fn are_queues_allowed(&self) -> bool {
        !self.queues_denied.load(Ordering::Relaxed)
    }

    /// Records that a server denies the commands of the queues. Waiters then compete as other clients do, and
    /// are served in their turns.
    pub(crate) fn deny_queues(&self) {
        self.queues_denied.store(true, Ordering::Relaxed);
    }

    /// Logs once that this user may use a lock and not its queue: the rules of the ACL name the two apart.
    pub(super) fn log_denied_queue(&self) {
        #[cfg(feature = "tracing")]
        if !self.denial_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!("lock backend denies the queue of a permitted lock");
        }
    }

    pub(crate) fn at<'a>(&'a self, route: &'a Route, key: &'a LockKey) -> KeyRoute<'a> {
        KeyRoute {
            route,
            key,
            period: self.quarantine_millis(),
            names: &self.names,
        }
    }

    /// Calls the script that acquires a key exclusively.
    pub(super) async fn call_exclusive(
        &self,
        at: KeyRoute<'_>,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<CommandReply, CommandError> {
        let period = at.period;
        let script = &self.scripts.acquire;
        let (body, fence) = (at.body(), at.fence());
        let more = usize::from(period.is_some());
        let size = body.len() + 2 * fence.len() + Named::MAX_LEN + 2 * OVERHEAD;
        let mut command = script.evalsha(2 + more, 2 + more, size);
        command.arg(body).arg(fence).arg(at.quarantine());
        command
            .arg(Named::exclusive(lease))
            .arg(millis(ttl))
            .arg(period);
        let release = || self.undo_one(&self.scripts.release, at, lease);
        let request = script.acquire(&command, 1, &release, ttl);
        call_with(script, at.route, &request).await
    }

    /// Acquires as a node of a quorum.
    pub(crate) async fn vote(
        &self,
        at: KeyRoute<'_>,
        request: &AcquireRequest,
        fence: Fence,
    ) -> Result<Acquired, BackendError> {
        let (counter, confirmed) = match fence {
            Fence::Propose(counter) => (counter, 0),
            Fence::Confirm(counter) => (counter, 1),
        };
        let AcquireRequest {
            lease, ttl, mode, ..
        } = *request;
        let (scripts, period) = (&self.scripts, at.period);
        let (body, agreed) = (at.body(), at.names.quorum_fence(at.route.slot()));
        let allowed = self.are_queues_allowed() && mode == Mode::Exclusive;
        let intent = request.intent.filter(|_| allowed);
        let (script, queue) = match mode {
            // Without an intent, the script uses no queue.
            Mode::Exclusive => (&scripts.vote, intent.map_or(body, |_| at.queue())),
            Mode::Shared | Mode::Permit => (&scripts.vote_shared, at.queue()),
        };
        let size = 2 * body.len() + 4 * agreed.len() + at.channel().len();
        let more = usize::from(period.is_some());
        let args = 7 + more;
        let mut command = script.evalsha(3 + 2 * more, args, size + Named::MAX_LEN + 4 * OVERHEAD);
        command.arg(body).arg(queue).arg(agreed);
        // The counter that shows a loss of data is not the one that the nodes agree on.
        command.arg(period.map(|_| at.fence())).arg(at.quarantine());
        command.arg(self.blind(at.route).unwrap_or(0));
        command.arg(Named(mode, lease)).arg(millis(ttl));
        command.arg(at.channel()).arg(intent.map_or(0, millis));
        command.arg(counter).arg(confirmed).arg(period);
        let release = || self.undo_one(&self.scripts.release, at, lease);
        let sent = script.acquire(&command, 1, &release, ttl);
        let outcome = call_with(script, at.route, &sent).await;
        if let Err(error) = &outcome
            && let Some(route) = &at.sharded_by(error)
        {
            return Box::pin(self.vote(KeyRoute { route, ..at }, request, fence)).await;
        }
        if intent.is_some()
            && let Err(error) = &outcome
            && error.excludes_queue()
        {
            let request = AcquireRequest::new(at.key.clone(), lease, ttl);
            return Box::pin(self.vote(at, &request, fence)).await;
        }
        self::outcome(at, outcome)
    }

    /// Returns the commands that publish a release outside of a script.
    pub(crate) fn messages(&self, at: KeyRoute<'_>) -> impl Iterator<Item = Cmd> {
        self.scripts.publish.iter().map(move |name| {
            let mut publish = redis::cmd(name);
            publish.arg(at.channel()).arg("0");
            publish
        })
    }

    /// Returns the command that deletes a lock body outside of a script.
    pub(crate) fn deletion(&self, at: KeyRoute<'_>) -> Cmd {
        let mut delete = redis::cmd("DEL");
        delete.arg(at.body());
        delete
    }

    /// Acquires several keys of one slot exclusively, without a quarantine.
    pub(crate) async fn acquire_all(
        &self,
        route: &Route,
        acquires: &[AcquireRequest],
    ) -> Outcomes<Acquired> {
        let Self { names, scripts, .. } = self;
        let script = &scripts.acquire_all;
        let fence = names.fence(route.slot());
        let bodies = std::iter::once(fence).chain(acquires.iter().map(|it| names.body(&it.key)));
        let mut command = script.batch(bodies, Named::MAX_LEN + OVERHEAD);
        for acquire in acquires {
            command
                .arg(Named::exclusive(acquire.lease))
                .arg(millis(acquire.ttl));
        }
        self.acquire_by(script, route, &command, acquires).await
    }

    /// Calls a script that acquires several keys of one slot.
    pub(super) async fn acquire_by(
        &self,
        script: &Script,
        route: &Route,
        command: &Cmd,
        acquires: &[AcquireRequest],
    ) -> Outcomes<Acquired> {
        let release = || {
            let leases = acquires
                .iter()
                .map(|it| Release::new(it.key.clone(), it.lease));
            let leases: Vec<_> = leases.collect();
            let leases: Vec<_> = leases.iter().collect();
            self.undo(&self.scripts.release, route, &leases)
        };
        let longest = acquires.iter().map(|it| it.ttl).max();
        let limit = longest.unwrap_or_default();
        let request = script.acquire(command, acquires.len(), &release, limit);
        let outcome = call_with(script, route, &request).await;
        if let Err(error @ CommandError::Refused(cause)) = &outcome
            && !error.may_spare_keys()
            && let Some(acquire) = acquires.first()
        {
            note(self.at(route, &acquire.key), Err(cause));
        }
        let outcomes = reply::acquires(outcome?.value, acquires.len())?;
        for (acquire, outcome) in acquires.iter().zip(&outcomes) {
            note(self.at(route, &acquire.key), outcome.as_ref());
        }
        Ok(outcomes)
    }

    pub(super) async fn renew_exclusive(
        &self,
        route: &Route,
        renewals: &[&Renewal],
    ) -> Outcomes<Renewed> {
        let script = &self.scripts.renew;
        let bodies = renewals.iter().map(|renewal| self.names.body(&renewal.key));
        let mut command = script.batch(bodies, Named::MAX_LEN + OVERHEAD);
        for renewal in renewals {
            command
                .arg(Named::exclusive(renewal.lease))
                .arg(millis(renewal.ttl));
        }
        let request = script.request(&command, renewals.len());
        let reply = call_with(script, route, &request).await?;
        Ok(each(list(reply.value, renewals.len())?, renewed))
    }
}

pub(super) fn outcome(
    at: KeyRoute<'_>,
    outcome: Result<CommandReply, CommandError>,
) -> Result<Acquired, BackendError> {
    match outcome {
        Ok(reply) => {
            let outcome = acquired(reply.value);
            note(at, outcome.as_ref());
            outcome
        }
        Err(error) => {
            if let CommandError::Refused(error) = &error {
                note(at, Err(error));
            }
            Err(error.into())
        }
    }
}

/// Logs the time in which a server grants nothing. Only a grant shows the end: with its memory full, a
/// server executes all other commands.
pub(super) fn note(at: KeyRoute<'_>, outcome: Result<&Acquired, &BackendError>) {
    let outage = &at.route.node().outage;
    match outcome {
        Ok(Acquired::Granted { .. }) => outage.end_for_any(),
        Err(error) => begin(outage, error),
        Ok(_) => {}
    }
}

/// Begins the outage of commands that the server rejects, unless only the key has foreign data.
pub(super) fn begin(outage: &Outage, error: &BackendError) {
    if error.kind() == BackendErrorKind::Conflict {
        return;
    }
    match concerns_all_keys(error) {
        true => outage.begin_for_all(error),
        false => outage.begin_for_some(error),
    }
}
