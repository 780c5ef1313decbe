//! The releaser: returns leases to the backend in batches, in the background of requests.
//!
//! The lane keeps the lease and the caller that awaits its release. The task only sends commands. It runs near the caller
//! that starts it. If its runtime blocks or has ended, a task at home sends them instead.

use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use crate::backend::{BackendError, BoxFuture, Immediate, Release, Released};
use crate::lock::clock::Moment;
use crate::lock::engine::unconfirmed::LAST_BACKOFF;
use crate::lock::engine::wake::TICK;
use crate::lock::engine::{Engine, Shutdown};
use crate::lock::lane::{Effects, Lane, Order, Outgoing, ReleaseOrKeep, Report, Work};
use crate::lock::lease::{Grant, HoldId, ReleasedTo};
use crate::observe::Reply;
use crate::{Error, LockKey};

mod release_or_keep;

use release_or_keep::{release_or_keep, start_release_or_keep};

/// The most keys of one command.
const BATCH: usize = 100;

/// The most commands at a time. With fewer, the releases of a busy process would lag behind its
/// acquires, and released keys would stay held.
const IN_FLIGHT: usize = 8;

/// The longest delay that one batch causes for the next one.
const PATIENCE: Duration = Duration::from_millis(20);

impl Engine {
    /// Ends one hold of a grant. Returns when the lease must have expired.
    ///
    /// Resolves `report` when the backend has the lease, or when it was handed off.
    pub(crate) fn release(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        hold: HoldId,
        report: Option<Report>,
        now: Moment,
    ) -> Moment {
        let key = grant.key();
        // The order is rare, so it is no part of the result, which every release moves.
        let mut keep = None;
        let is_awaited = report.is_some();
        let (until, has_ended) = self.event(key, now, |lane, effects| {
            let is_last = grant.holds() == 1;
            let until = lane.release(grant, hold, report, effects);
            let has_ended = is_last && grant.holds() == 0 && !grant.is_marked_lost();
            // Most releases of nested holds, and all hand-offs, return nothing.
            if lane.is_returning() {
                if has_ended
                    && !is_awaited
                    && grant.keep.is_some()
                    && let Some(length) = self.keeps(grant, now)
                {
                    lane.keep(length, effects);
                }
                let immediate = self.backend.immediate();
                keep = immediate.and_then(|backend| return_now(self, &backend, key, lane, effects));
            }
            (until, has_ended)
        });
        if has_ended {
            self.released(grant, now);
        }
        if let Some(order) = keep {
            start_release_or_keep(self, key.clone(), order);
        }
        until
    }
}

/// Returns the lease to a backend that replies without waiting. If the lease may be kept, leaves that
/// command to the caller instead.
fn return_now(
    engine: &Engine,
    backend: &Immediate<'_>,
    key: &LockKey,
    lane: &mut Lane,
    effects: &mut Effects,
) -> Option<ReleaseOrKeep> {
    let order = lane.take_return(effects.now, engine.stuck_at(effects.now))?;
    // The return is the only work, and is done here. It owns nothing, so it needs no drop.
    let _done = ManuallyDrop::new(mem::take(&mut effects.work));
    match order {
        Order::Release(outgoing) => {
            let release = Release::new(key.clone(), engine.lease_id(outgoing.lease));
            let outcome = Ok(backend.release(release, effects.now.into()));
            count(engine, &outcome);
            settle(outgoing, lane, outcome, effects);
            None
        }
        Order::ReleaseOrKeep(order) => Some(order),
    }
}

/// Counts the reply to a release.
fn count(engine: &Engine, outcome: &Result<Released, BackendError>) {
    engine.tally.released(match outcome {
        Ok(Released::NotHeld) => Reply::NotHeld,
        Ok(_) => Reply::Done,
        Err(_) => Reply::Failed,
    });
}

/// Schedules the return of the lease of `key`. Never blocks.
pub(crate) fn enqueue(engine: &Arc<Engine>, key: &LockKey) {
    if let Some(backend) = engine.backend.immediate() {
        let now = engine.now();
        let keep = engine.event(key, now, |lane, effects| {
            return_now(engine, &backend, key, lane, effects)
        });
        if let Some(order) = keep {
            start_release_or_keep(engine, key.clone(), order);
        }
    } else {
        engine.home.releases.push(key.clone());
        start(engine);
        engine.lanes.have_changed();
    }
}

/// Starts the task near the caller, unless it already runs or has nothing to do.
pub(crate) fn start(engine: &Arc<Engine>) {
    if engine.home.releases.start() {
        let running = Running::of(engine, false);
        engine.home.spawn_near(run(running));
    }
}

/// Starts a task at home, because the other one does not run.
pub(crate) fn take_over(engine: &Arc<Engine>) {
    engine.home.spawn(run(Running::of(engine, true)));
}

/// Reports the end of the task, even if its runtime drops it.
struct Running {
    engine: Arc<Engine>,
    at_home: bool,
    over: bool,
}

impl Running {
    fn of(engine: &Arc<Engine>, at_home: bool) -> Self {
        Self {
            engine: Arc::clone(engine),
            at_home,
            over: false,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let engine = &self.engine;
        engine.home.releases.stopped();
        match (self.over, self.at_home) {
            // A key pushed between the last check and the flag did not start a task.
            (true, _) => start(engine),
            (false, true) => engine.home.task_was_dropped(),
            // The runtime of a caller has ended.
            (false, false) => take_over(engine),
        }
    }
}

async fn run(mut running: Running) {
    let engine = Arc::clone(&running.engine);
    loop {
        let round = engine.home.releases.next_round(IN_FLIGHT * BATCH);
        if round.is_empty() {
            running.over = true;
            return;
        }
        let mut releases = Vec::with_capacity(round.len());
        let mut keeps = Vec::new();
        let now = engine.now();
        let due = engine.stuck_at(now);
        for key in round {
            match engine.event(&key, now, |lane, _| lane.take_return(now, due)) {
                Some(Order::Release(outgoing)) => releases.push((key, outgoing)),
                Some(Order::ReleaseOrKeep(order)) => keeps.push((key, order)),
                // The lease was taken back, or the reply to a renewal is still to come.
                None => {}
            }
        }
        let keeps = engine.in_batches(keeps, BATCH, |(key, _)| key).into_iter();
        let keep = |batch| Box::pin(release_or_keep(Arc::clone(&engine), batch)) as BoxFuture<()>;
        send(&engine, releases, keeps.map(keep).collect()).await;
    }
}

/// Sends one round, each key group separately.
///
/// Waits for the last batch while keys collect for the next round, up to [`PATIENCE`], so a batch that
/// hangs delays no other. No key waits for a command of `keeps`.
async fn send(engine: &Arc<Engine>, leases: Vec<(LockKey, Outgoing)>, keeps: Vec<BoxFuture<()>>) {
    let patience = match leases.is_empty() {
        true => Duration::ZERO,
        false => PATIENCE,
    };
    let mut commands = keeps;
    let batches = match leases.len() {
        // Mostly one key is released, and its list becomes the batch.
        1 => vec![leases],
        _ => engine.in_batches(leases, BATCH, |(key, _)| key),
    };
    for batch in batches {
        commands.push(Box::pin(release(Arc::clone(engine), batch)));
    }
    let Some(mut last) = commands.pop() else {
        return;
    };
    for command in commands {
        engine.home.spawn_near(command);
    }
    // Mostly it is the only command, and a task of its own would double the cost.
    let patience_ends = engine.now() + patience;
    // No timer until another key is queued. It would mostly be the first timer to fire, and setting it
    // would wake the thread that waits for I/O, the largest cost of a release.
    tokio::select! {
        biased;
        () = &mut last => return,
        () = engine.home.releases.has_more() => {}
    }
    if timeout_at(patience_ends.into(), &mut last).await.is_err() {
        engine.home.spawn_near(last);
    }
}

/// Releases one batch. Each lane continues after any reply: failed releases are retried without it.
async fn release(engine: Arc<Engine>, leases: Vec<(LockKey, Outgoing)>) {
    let releases = leases
        .iter()
        .map(|(key, outgoing)| Release::new(key.clone(), engine.lease_id(outgoing.lease)));
    let in_flight = InFlight(&engine);
    // Only the end of the runtime drops this await.
    let outcomes = Arc::clone(&engine.backend)
        .release(releases.collect())
        .await;
    let _has_replies = ManuallyDrop::new(in_flight);
    let now = engine.now();
    for ((key, outgoing), outcome) in leases.into_iter().zip(outcomes) {
        count(&engine, &outcome);
        expect_replies(&engine, &outcome, now);
        if outcome.is_ok() {
            (engine.home.unconfirmed).released_elsewhere(&key, outgoing.lease);
        }
        engine.event(&key, now, |lane, effects| {
            settle(outgoing, lane, outcome, effects);
        });
    }
}

/// Lets the end of a shutdown wait for the next release if the backend replied to this one, even with a failure.
pub(super) fn expect_replies<T>(engine: &Engine, outcome: &Result<T, BackendError>, now: Moment) {
    let is_silent = matches!(outcome, Err(error) if error.may_have_taken_effect());
    if !is_silent && engine.has_reached(Shutdown::Rejecting) {
        let next = engine.stuck_at(now + 2 * LAST_BACKOFF);
        engine.replies_by.no_earlier_than(next);
    }
}

/// A release in flight. If its runtime ends, home sends it again, and a shutdown waits for that reply.
struct InFlight<'e>(&'e Engine);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let again = self.0.stuck_at(self.0.now()) + 2 * TICK;
        self.0.replies_by.no_earlier_than(self.0.stuck_at(again));
    }
}

/// Applies the reply to a release. A failed release is retried without the lane, even if the lane has dropped the
/// lease, because the backend may hold it longer.
///
/// A release that the backend itself resent, and that then finds no lease, arrives as
/// [`Released::Released`]: the [contract](crate::backend::Backend#cancel-safety) requires it.
fn settle(
    outgoing: Outgoing,
    lane: &mut Lane,
    outcome: Result<Released, BackendError>,
    effects: &mut Effects,
) {
    let lease = outgoing.lease;
    let released_to = outcome
        .as_ref()
        .map_or(ReleasedTo::Nobody, |released| ReleasedTo::by(*released));
    let was_returning = lane.is_returning();
    let (outcome, failed) = match outcome {
        Ok(Released::NotHeld) => (lane.returned_absent(lease, effects.now), None),
        Ok(_) => (Ok(()), None),
        Err(error) => {
            effects.work.push(Work::ReleaseGranted(outgoing));
            (Err(Error::of_backend(error.clone())), Some(error))
        }
    };
    lane.returned(lease, outcome, released_to, effects);
    if let Some(error) = failed.filter(|_| was_returning) {
        lane.return_failed(error);
    }
}

/// Sends a release without a reply again, from home. It may take effect twice.
pub(crate) fn send_again(engine: &Arc<Engine>, key: &LockKey, outgoing: Outgoing) {
    let batch = vec![(key.clone(), outgoing)];
    engine.home.spawn(release(Arc::clone(engine), batch));
}

#[cfg(test)]
mod tests;
