//! Finishes what a dropped guard started: off the request's path, in batches.
//!
//! The lane keeps the lease and the call that waits for its release; the task only sends commands. What it
//! does not do, since its runtime idles or has ended, another runtime does as soon as somebody waits for it
//! there.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use super::claim::HoldId;
use super::clock::{Moment, Span};
use super::effect::{Effects, Outgoing, Report, Work};
use super::engine::Engine;
use super::grant::Grant;
use super::home::Home;
use super::lane::{self, Kept, Lane, Order, Yielded};
use crate::backend::{
    BackendError, Immediate as _, KeepRequest, Release, Released, ReleasedOrKept,
};
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// The most keys of one command.
const BATCH: usize = 100;

/// The most commands at a time. With fewer, releases would fall behind the acquires of a busy
/// process, and keys stay taken that nobody holds.
const IN_FLIGHT: usize = 8;

/// How long a batch may hold up the next one.
const PATIENCE: Duration = Duration::from_millis(20);

impl Engine {
    /// Ends one hold of a grant. `report` is resolved when the lease is with the backend, or has gone to the
    /// next in the queue; at the latest, the lease has expired by the moment that is returned.
    pub(super) fn release(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        hold: HoldId,
        report: Option<Report>,
    ) -> Moment {
        let key = grant.key();
        let now = Moment::now();
        let immediate = self.backend.immediate().is_some();
        // Where the backend replies at once, no task is needed.
        let home = if immediate {
            None
        } else {
            self.current_home().ok()
        };
        let (until, keep) = self.event(key, |lane, effects| {
            let release = lane::Release {
                hold,
                report,
                home,
                now,
            };
            let until = lane.release(key, grant, release, effects);
            let keep = return_now(self, key, lane, now, effects);
            (until, keep.zip(lane.home()))
        });
        if let Some(((outgoing, ttl), home)) = keep {
            start_release_or_keep(self, key.clone(), outgoing, ttl, home);
        }
        until
    }
}

/// Returns the lease of a lane whose backend replies without waiting. If it is to be kept unless others
/// wait, that is left to the caller.
fn return_now(
    engine: &Engine,
    key: &LockKey,
    lane: &mut Lane,
    now: Moment,
    effects: &mut Effects,
) -> Option<(Outgoing, Span)> {
    let backend = engine.backend.immediate()?;
    let home = lane.home()?;
    let order = lane.take_return(home, now, engine.stuck_at(now))?;
    // A task would have nothing to do any more.
    effects.work.retain(|work| !matches!(work, Work::Return(_)));
    match order {
        Order::Release(outgoing) => {
            let release = Release::new(key.clone(), engine.lease_id(outgoing.lease));
            let outcome = backend.release(&release, now.into());
            let sent = Sent {
                outgoing,
                home,
                repeat: Repeat::No,
            };
            sent.settle(lane, outcome, now, effects);
            None
        }
        Order::ReleaseOrKeep(outgoing, ttl) => Some((outgoing, ttl)),
    }
}

/// The lane of `key` has a lease to return, by a task in `home`. Never blocks.
pub(super) fn enqueue(engine: &Arc<Engine>, key: &LockKey, home: RuntimeId) {
    if engine.backend.immediate().is_some() {
        let now = Moment::now();
        let keep = engine.event(key, |lane, effects| {
            return_now(engine, key, lane, now, effects)
        });
        if let Some((outgoing, ttl)) = keep {
            start_release_or_keep(engine, key.clone(), outgoing, ttl, home);
        }
    } else if let Some(home) = engine.home(home) {
        home.releases.push(key.clone());
        start(engine, &home);
    }
    // Where no runtime is left, the next one that is used goes on with it.
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

/// Goes on with what was left in the queues of runtimes that have ended.
pub(super) fn resume(engine: &Arc<Engine>) {
    for home in engine.homes.all() {
        if !home.releases.is_empty() {
            start(engine, &home);
        }
    }
}

/// Reports that the task is gone, also when its runtime drops it.
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
            // What came between the last look and the flag found the flag set.
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
        let now = Moment::now();
        let due = engine.stuck_at(now);
        for key in round {
            match engine.event(&key, |lane, _| lane.take_return(home.id, now, due)) {
                Some(Order::Release(outgoing)) => releases.push((key, outgoing)),
                Some(Order::ReleaseOrKeep(outgoing, ttl)) => {
                    start_release_or_keep(&engine, key, outgoing, ttl, home.id);
                }
                // Taken back, or waiting for the reply to a renewal.
                None => {}
            }
        }
        send(&engine, &home, releases).await;
    }
}

/// Sends one round, each group of keys on its own, and waits for the end of one of its batches, while
/// others gather for the next round; but not for long: one that hangs delays no other.
async fn send(engine: &Arc<Engine>, home: &Arc<Home>, leases: Vec<(LockKey, Outgoing)>) {
    let batches = engine.in_batches(leases, BATCH, |(key, _)| key);
    let mut batches: Vec<_> = batches
        .into_iter()
        .map(|batch| release(Arc::clone(engine), home.id, batch, Repeat::No))
        .collect();
    let Some(last) = batches.pop() else { return };
    for batch in batches {
        home.runtime.spawn(batch);
    }
    // Mostly the only one: a task of its own would cost as much as all the rest.
    let mut last = Box::pin(last);
    let patience_ends = Moment::now() + PATIENCE;
    // No timer while nobody waits for this one to end: it would mostly be the first to fire, and then
    // the thread that waits for I/O is woken to learn of it. At each release, that is the most
    // expensive part.
    tokio::select! {
        biased;
        () = &mut last => return,
        () = home.releases.has_more() => {}
    }
    if timeout_at(patience_ends.into(), &mut last).await.is_err() {
        home.runtime.spawn(last);
    }
}

/// Whether an earlier command may have released the leases already, which is as good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Yes,
    No,
}

/// Releases one batch. Whatever the reply, each lane goes on: what failed is tried again beside it.
async fn release(
    engine: Arc<Engine>,
    home: RuntimeId,
    leases: Vec<(LockKey, Outgoing)>,
    repeat: Repeat,
) {
    let releases = leases
        .iter()
        .map(|(key, outgoing)| Release::new(key.clone(), engine.lease_id(outgoing.lease)));
    // Dropped here only with the runtime; then the leases expire.
    let outcomes = Arc::clone(&engine.backend)
        .release(releases.collect())
        .await;
    for ((key, outgoing), outcome) in leases.into_iter().zip(outcomes) {
        let now = Moment::now();
        let sent = Sent {
            outgoing,
            home,
            repeat,
        };
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
    repeat: Repeat,
}

impl Sent {
    /// Applies the reply. A failed release is tried again beside the lane, also if the lane has forgotten
    /// the lease: the backend may hold it for longer than the lane could know.
    fn settle(
        self,
        lane: &mut Lane,
        outcome: Result<Released, BackendError>,
        now: Moment,
        effects: &mut Effects,
    ) {
        let Outgoing { lease, ttl } = self.outgoing;
        let outcome = match outcome {
            Ok(Released::Released) => Ok(()),
            Ok(Released::NotHeld)
                if self.repeat == Repeat::Yes && lane.returns_in_time(lease, now) =>
            {
                Ok(())
            }
            Ok(Released::NotHeld) => Err(Error::new(ErrorKind::Lost)),
            Err(error) => {
                let home = self.home;
                effects.work.push(Work::Resolve { lease, ttl, home });
                Err(error.into())
            }
        };
        lane.returned(lease, outcome, Yielded::ToNobody, now, effects);
    }
}

/// Sends a release again from `home`, since nothing was heard of the one before. It may be sent twice.
pub(super) fn send_again(engine: &Arc<Engine>, key: &LockKey, outgoing: Outgoing, home: RuntimeId) {
    if let Some(home) = engine.home(home) {
        let batch = vec![(key.clone(), outgoing)];
        let task = release(Arc::clone(engine), home.id, batch, Repeat::Yes);
        home.runtime.spawn(task);
    }
}

fn start_release_or_keep(
    engine: &Arc<Engine>,
    key: LockKey,
    outgoing: Outgoing,
    ttl: Span,
    home: RuntimeId,
) {
    if let Some(home) = engine.home(home) {
        let task = release_or_keep(Arc::clone(engine), home.id, key, outgoing, ttl);
        home.runtime.spawn(task);
    }
}

/// The hand-off budget is spent: asks whether another process wants the key.
async fn release_or_keep(
    engine: Arc<Engine>,
    home: RuntimeId,
    key: LockKey,
    outgoing: Outgoing,
    ttl: Span,
) {
    let number = outgoing.lease;
    let sent_at = Moment::now();
    let request = KeepRequest::new(key.clone(), engine.lease_id(number), ttl.get());
    let backend = Arc::clone(&engine.backend);
    let outcome = backend.release_or_keep(request).await;
    let now = Moment::now();
    match outcome {
        Ok(ReleasedOrKept::Kept { counter }) => {
            let kept = Kept {
                counter,
                ttl,
                sent_at,
                home,
            };
            engine.event(&key, |lane, effects| {
                lane.kept(&key, number, kept, now, effects);
            });
        }
        Ok(ReleasedOrKept::Released { watchers }) => {
            let yielded = Yielded::to(watchers);
            engine.event(&key, |lane, effects| {
                lane.returned(number, Ok(()), yielded, now, effects);
            });
        }
        Ok(ReleasedOrKept::NotHeld) => {
            let lost = Err(Error::new(ErrorKind::Lost));
            engine.event(&key, |lane, effects| {
                lane.returned(number, lost, Yielded::ToNobody, now, effects);
            });
        }
        // It may have been renewed or released; the plain release settles it either way.
        Err(_) => release(engine, home, vec![(key, outgoing)], Repeat::Yes).await,
    }
}

#[cfg(test)]
mod tests;
