//! The releaser: returns leases to the backend in batches, in the background of requests.
//!
//! The lane keeps the lease and the caller that awaits its release. The task only sends commands. If its
//! runtime idles or has ended, the runtime of a waiter sends them instead.

use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use super::claim::HoldId;
use super::clock::Moment;
use super::effect::{Effects, Outgoing, Report, Work};
use super::engine::Engine;
use super::grant::Grant;
use super::home::Home;
use super::lane::{self, Lane, Order, ReleaseOrKeep};
use super::yielded::Yielded;
use crate::backend::{BackendError, BoxFuture, Immediate, Release, Released};
use crate::observe::Reply;
use crate::task::RuntimeId;
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
    /// Checks that the caller can send a command.
    ///
    /// # Errors
    ///
    /// Returns [`Misconfigured`](crate::ErrorKind::Misconfigured) outside a runtime, and in one without timers, unless
    /// the backend replies at once or a runtime is set.
    pub(super) fn require_runtime(self: &Arc<Self>) -> Result<(), Error> {
        match self.backend.immediate() {
            Some(_) => Ok(()),
            None => self.current_home().map(drop),
        }
    }

    /// Returns the runtime of the task that returns a lease for the caller. A backend that replies at once
    /// needs no task.
    #[inline]
    pub(super) fn release_home(self: &Arc<Self>) -> Option<RuntimeId> {
        if self.replies_at_once {
            return None;
        }
        self.current_home().ok()
    }

    /// Ends one hold of a grant, for a caller in the runtime `home`. Returns when the lease must have expired.
    ///
    /// Resolves `report` when the backend has the lease, or when it was handed off.
    pub(super) fn release(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        hold: HoldId,
        home: Option<RuntimeId>,
        report: Option<Box<Report>>,
        now: Moment,
    ) -> Moment {
        let key = grant.key();
        // The order is rare, so it is no part of the result, which every release moves.
        let mut keep = None;
        let (until, has_ended) = self.event(key, |lane, effects| {
            let release = lane::Release {
                hold,
                report,
                home,
                now,
            };
            let is_last = grant.holds() == 1;
            let until = lane.release(key, grant, release, effects);
            let has_ended = is_last && grant.holds() == 0 && !grant.is_marked_lost();
            // Most releases of nested holds, and all hand-offs, return nothing.
            let immediate = lane.is_returning().then(|| self.backend.immediate());
            keep = immediate.flatten().and_then(|backend| {
                return_now(self, &backend, key, lane, now, effects).zip(lane.home())
            });
            (until, has_ended)
        });
        if has_ended {
            self.released(grant, now);
        }
        if let Some((order, home)) = keep {
            start_release_or_keep(self, key.clone(), order, home);
        }
        until
    }
}

/// Returns the lease to a backend that replies without waiting. If the lease may be kept, leaves that
/// command to the caller instead.
fn return_now(
    engine: &Engine,
    backend: &impl Immediate,
    key: &LockKey,
    lane: &mut Lane,
    now: Moment,
    effects: &mut Effects,
) -> Option<ReleaseOrKeep> {
    let home = lane.home()?;
    let order = lane.take_return(home, now, engine.stuck_at(now))?;
    // The return is the only work, and is done here. It owns nothing, so it needs no drop.
    let _done = ManuallyDrop::new(mem::take(&mut effects.work));
    match order {
        Order::Release(outgoing) => {
            let release = Release::new(key.clone(), engine.lease_id(outgoing.lease));
            let outcome = backend.release(&release, now.into());
            count(engine, &outcome);
            let sent = Sent { outgoing, home };
            sent.settle(lane, outcome, now, effects);
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

/// Schedules the return of the lease of `key`, by a task in `home`. Never blocks.
pub(super) fn enqueue(engine: &Arc<Engine>, key: &LockKey, home: RuntimeId) {
    if let Some(backend) = engine.backend.immediate() {
        let now = Moment::now();
        let keep = engine.event(key, |lane, effects| {
            return_now(engine, &backend, key, lane, now, effects)
        });
        if let Some(order) = keep {
            start_release_or_keep(engine, key.clone(), order, home);
        }
    } else if let Some(home) = engine.home(home) {
        home.releases.push(key.clone());
        start(engine, &home);
    }
    // If no runtime is left, the next one that is used continues.
}

fn start(engine: &Arc<Engine>, home: &Arc<Home>) {
    if home.releases.start() {
        let running = Running {
            engine: Arc::clone(engine),
            home: Arc::clone(home),
            over: false,
        };
        home.runtime.spawn(run(running));
    }
}

/// Reports the end of the task, even if its runtime drops it.
struct Running {
    engine: Arc<Engine>,
    home: Arc<Home>,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Self { engine, home, over } = self;
        home.releases.stopped();
        if *over {
            // A key pushed between the last check and the flag did not start a task.
            if !home.releases.is_empty() {
                start(engine, home);
            }
            return;
        }
        engine.homes.end(home.id);
        for key in home.releases.next_round(usize::MAX) {
            enqueue(engine, &key, home.id);
        }
    }
}

async fn run(mut running: Running) {
    let engine = Arc::clone(&running.engine);
    let home = Arc::clone(&running.home);
    loop {
        let round = home.releases.next_round(IN_FLIGHT * BATCH);
        if round.is_empty() {
            running.over = true;
            return;
        }
        let mut releases = Vec::with_capacity(round.len());
        let mut keeps = Vec::<BoxFuture<()>>::new();
        let now = Moment::now();
        let due = engine.stuck_at(now);
        for key in round {
            match engine.event(&key, |lane, _| lane.take_return(home.id, now, due)) {
                Some(Order::Release(outgoing)) => releases.push((key, outgoing)),
                Some(Order::ReleaseOrKeep(order)) => {
                    let engine = Arc::clone(&engine);
                    keeps.push(Box::pin(release_or_keep(engine, home.id, key, order)));
                }
                // The lease was taken back, or the reply to a renewal is still to come.
                None => {}
            }
        }
        send(&engine, &home, releases, keeps).await;
    }
}

/// Sends one round, each key group separately.
///
/// Waits for the last batch while keys collect for the next round, up to [`PATIENCE`], so a batch that
/// hangs delays no other. No key waits for a command of `keeps`, which are not batched.
async fn send(
    engine: &Arc<Engine>,
    home: &Arc<Home>,
    leases: Vec<(LockKey, Outgoing)>,
    keeps: Vec<BoxFuture<()>>,
) {
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
        commands.push(Box::pin(release(Arc::clone(engine), home.id, batch)));
    }
    let Some(mut last) = commands.pop() else {
        return;
    };
    for command in commands {
        home.runtime.spawn(command);
    }
    // Mostly it is the only command, and a task of its own would double the cost.
    let patience_ends = Moment::now() + patience;
    // No timer until another key is queued. It would mostly be the first timer to fire, and setting it
    // would wake the thread that waits for I/O, the largest cost of a release.
    tokio::select! {
        biased;
        () = &mut last => return,
        () = home.releases.has_more() => {}
    }
    if timeout_at(patience_ends.into(), &mut last).await.is_err() {
        home.runtime.spawn(last);
    }
}

/// Releases one batch. Each lane continues after any reply: failed releases are retried without it.
async fn release(engine: Arc<Engine>, home: RuntimeId, leases: Vec<(LockKey, Outgoing)>) {
    let releases = leases
        .iter()
        .map(|(key, outgoing)| Release::new(key.clone(), engine.lease_id(outgoing.lease)));
    let sent_at = Moment::now();
    // Only the end of the runtime drops this await; the leases then expire.
    let outcomes = Arc::clone(&engine.backend)
        .release(releases.collect())
        .await;
    let now = Moment::now();
    for ((key, outgoing), outcome) in leases.into_iter().zip(outcomes) {
        count(&engine, &outcome);
        if outcome.is_ok() {
            engine.homes.released(&key, outgoing.lease, sent_at);
        }
        let sent = Sent { outgoing, home };
        engine.event(&key, |lane, effects| {
            sent.settle(lane, outcome, now, effects);
        });
    }
}

/// A release that was sent by a task in `home`.
#[derive(Debug, Clone, Copy)]
struct Sent {
    outgoing: Outgoing,
    home: RuntimeId,
}

impl Sent {
    /// Applies the reply. A failed release is retried without the lane, even if the lane has dropped the
    /// lease, because the backend may hold it longer.
    ///
    /// A release that the backend itself resent, and that then finds no lease, arrives as
    /// [`Released::Released`]: the [contract](crate::backend::Backend#cancel-safety) requires it.
    fn settle(
        self,
        lane: &mut Lane,
        outcome: Result<Released, BackendError>,
        now: Moment,
        effects: &mut Effects,
    ) {
        let lease = self.outgoing.lease;
        let yielded = outcome
            .as_ref()
            .map_or(Yielded::ToNobody, |released| Yielded::by(*released));
        let was_returning = lane.is_returning();
        let (outcome, failed) = match outcome {
            Ok(Released::NotHeld) => (lane.returned_absent(lease, now), None),
            Ok(_) => (Ok(()), None),
            Err(error) => {
                let retry = Work::ResolveGranted(self.outgoing, self.home);
                effects.work.push(retry);
                (Err(error.clone().into()), Some(error))
            }
        };
        lane.returned(lease, outcome, yielded, self.home, now, effects);
        if let Some(error) = failed.filter(|_| was_returning) {
            lane.return_failed(error);
        }
    }
}

/// Resends from `home` a release without a reply. It may take effect twice.
pub(super) fn send_again(engine: &Arc<Engine>, key: &LockKey, outgoing: Outgoing, home: RuntimeId) {
    if let Some(home) = engine.home(home) {
        let batch = vec![(key.clone(), outgoing)];
        let task = release(Arc::clone(engine), home.id, batch);
        home.runtime.spawn(task);
    }
}

#[cfg(test)]
mod tests;
