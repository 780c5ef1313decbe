//! Renews what is held, and tells what is lost: one task per manager.
//!
//! It walks the lanes, renews the leases of which a third has passed, and tells the guards whose
//! time is over. It sleeps until the next lease is due, so a lock that is held for less than a
//! third of its lease costs it nothing; it ends when it finds nothing held. When the backend has
//! been out of reach, everything is due at once: what is gone shall be told now.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep_until;

use super::engine::Engine;
use super::moment::{AtomicMoment, Moment};
use super::order::{Answered, Due};
use super::releaser::tell;
use crate::LockKey;
use crate::backend::{BackendError, BackendErrorKind, Renewal, Renewed};

/// The most leases of one command.
const BATCH: usize = 100;

/// The most commands of one group of keys, in one round, at a time. Each has only so long for its
/// answer: a thousand at once would wait for each other in the backend until their time is up, and
/// then all be sent again.
const IN_FLIGHT: usize = 16;

#[derive(Debug)]
pub(super) struct Watchdog {
    /// When it looks again. Only a walk puts it off: what one task was told of, the next one keeps.
    wakes_at: AtomicMoment,
    /// Told when it has to look earlier than that.
    earlier: Arc<Notify>,
    running: AtomicBool,
}

const NEVER: Moment = Moment::LAST;

impl Watchdog {
    pub(super) fn new() -> Self {
        Self {
            wakes_at: AtomicMoment::new(NEVER),
            earlier: Arc::default(),
            running: AtomicBool::new(false),
        }
    }

    /// Sees to it that the task looks at the lanes no later than `at`.
    pub(super) fn look_at(&self, engine: &Arc<Engine>, at: Moment) {
        if self.wakes_at.load() > at && self.wakes_at.no_later_than(at) {
            self.earlier.notify_one();
        }
        // Whatever the time: the task that was to serve it may be gone.
        self.start(engine);
    }

    fn start(&self, engine: &Arc<Engine>) {
        // It mostly runs, and to look costs less than to write.
        if self.running.load(Ordering::SeqCst) || self.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let running = Running(Arc::downgrade(engine));
        let earlier = Arc::clone(&self.earlier);
        engine.spawner.spawn(run(running, earlier));
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The task finds its manager gone, and ends.
        self.earlier.notify_one();
    }
}

/// Says that the task is gone, also when its runtime drops it: the next grant starts another.
struct Running(Weak<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            engine.watchdog.running.store(false, Ordering::SeqCst);
        }
    }
}

async fn run(running: Running, earlier: Arc<Notify>) {
    let Some(mut recoveries) = running.0.upgrade().map(|it| it.backend.recoveries()) else {
        return;
    };
    loop {
        // Held for the round only: a manager that nobody uses any more must be able to go.
        let Some(engine) = running.0.upgrade() else {
            return;
        };
        let watchdog = &engine.watchdog;
        let wakes_at = watchdog.wakes_at.load();
        if wakes_at == NEVER || wakes_at <= Moment::now() {
            // From here on a grant leaves its time anew, and a ring.
            watchdog.wakes_at.store(NEVER);
            if let Some(next) = round(&engine) {
                watchdog.wakes_at.no_later_than(next);
                continue;
            }
            drop(running);
            // What was granted between the walk and the flag found the flag set.
            if anything_watched(&engine) {
                engine.watchdog.start(&engine);
            }
            return;
        }
        drop(engine);
        tokio::select! {
            () = sleep_until(wakes_at.into()) => {}
            () = earlier.notified() => {}
            () = recoveries.next() => {
                let Some(engine) = running.0.upgrade() else { return };
                let now = Moment::now();
                engine.lanes.for_each(|_, lane| lane.doubt(now));
                engine.watchdog.wakes_at.no_later_than(now);
            }
        }
    }
}

fn anything_watched(engine: &Engine) -> bool {
    let mut watched = false;
    engine
        .lanes
        .for_each(|_, lane| watched |= lane.is_watched());
    watched
}

/// Walks the lanes once. When to walk again; `None` if there is nothing to watch.
fn round(engine: &Arc<Engine>) -> Option<Moment> {
    let mut next = None;
    let mut earliest = |at: Moment| next = Some(next.map_or(at, |next: Moment| next.min(at)));
    let mut over = Vec::new();
    let mut renewals = Vec::new();
    let now = Moment::now();
    engine.lanes.for_each(|key, lane| match lane.due(now) {
        Due::Never => {}
        Due::Later(at) => earliest(at),
        Due::Renew(number, ttl, until) => {
            earliest(until);
            renewals.push(Renewal::new(key.clone(), engine.lease_id(number), ttl));
        }
        Due::Lost(grant, next) => over.push((key.clone(), Some(grant), None, next)),
        Due::Forsaken(report, next) => over.push((key.clone(), None, report, next)),
    });
    // No renewal may be sent after a release: a lane that has a renewal on the wire, as these have
    // from here on, holds its release back until the answer.
    for group in engine.in_groups(renewals, |renewal| &renewal.key) {
        let turns = Arc::new(Semaphore::new(IN_FLIGHT));
        for batch in group.chunks(BATCH) {
            let renewal = renew(Arc::clone(engine), batch.to_vec(), Arc::clone(&turns));
            engine.spawner.spawn(renewal);
        }
    }
    for (key, grant, unreported, next) in over {
        if let Some(grant) = grant {
            grant.lose();
        }
        drop(unreported);
        engine.follow(&key, next);
    }
    next
}

/// One batch, beside the others and beside the walk: one that hangs delays no other, but for those
/// of its group that wait for its turn.
async fn renew(engine: Arc<Engine>, mut batch: Vec<Renewal>, turns: Arc<Semaphore>) {
    // Never closed, so always a turn.
    let _turn = turns.acquire().await;
    // While it waited, locks were given back or lost: none of them is renewed.
    let now = Moment::now();
    batch.retain(|renewal| {
        let wanted = engine
            .lanes
            .with(&renewal.key, |lane| lane.wants_renewal(renewal, now));
        if !wanted {
            let kind = BackendErrorKind::Unavailable;
            let not_sent = Err(BackendError::refused(kind, "not sent"));
            answered(&engine, renewal, now, &not_sent);
        }
        wanted
    });
    if batch.is_empty() {
        return;
    }
    let sent_at = Moment::now();
    // Dropped here only with the runtime; then the leases run out and the guards say so.
    let outcomes = Arc::clone(&engine.backend).renew(batch.clone()).await;
    for (renewal, outcome) in batch.iter().zip(&outcomes) {
        answered(&engine, renewal, sent_at, outcome);
    }
}

fn answered(
    engine: &Arc<Engine>,
    renewal: &Renewal,
    sent_at: Moment,
    outcome: &Result<Renewed, BackendError>,
) {
    let answered = engine
        .lanes
        // The time of each: whoever looked and found the lock lost must have been right.
        .with(&renewal.key, |lane| {
            lane.renewed(renewal, sent_at, outcome, Moment::now())
        });
    follow(engine, renewal, answered, may_have_renewed(outcome));
}

/// Does what the answer to a renewal, or to what is one, asks for. `renewed`: the backend may hold the
/// lease for longer by it.
pub(super) fn follow(engine: &Arc<Engine>, renewal: &Renewal, answered: Answered, renewed: bool) {
    let key: &LockKey = &renewal.key;
    match answered {
        Answered::Held(next_look) => engine.watchdog.look_at(engine, next_look),
        Answered::Lost(grant, next) => {
            grant.lose();
            engine.follow(key, next);
        }
        Answered::Returning => engine.releaser.enqueue(engine, key.clone()),
        Answered::HandedOn(report, next) => {
            tell(report, Ok(()));
            engine.follow(key, next);
        }
        // The lane went on without it; this renewal may just have lengthened it.
        Answered::Stale if renewed => {
            let (key, lease) = (key.clone(), renewal.lease);
            engine.releaser.give_back(engine, key, lease, renewal.ttl);
        }
        Answered::Stale => {}
    }
}

fn may_have_renewed(outcome: &Result<Renewed, BackendError>) -> bool {
    match outcome {
        Ok(Renewed::Renewed) => true,
        Ok(Renewed::NotHeld) => false,
        Err(error) => error.may_have_taken_effect(),
    }
}

#[cfg(test)]
mod tests;
