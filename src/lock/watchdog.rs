//! Renews what is held, and tells what is lost: one task per manager.
//!
//! It walks the lanes, renews the leases of which a third has passed, and tells the guards whose
//! time is over. It sleeps until the next lease is due, so a lock that is held for less than a
//! third of its lease costs it nothing but being passed by; it ends when nothing is held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::engine::Engine;
use super::lane::{Answered, Due};
use crate::LockKey;
use crate::backend::{BackendError, Renewal, Renewed};

/// The most leases of one command.
const BATCH: usize = 100;

/// The most commands at a time. Each has only so long for its answer: a thousand at once would wait
/// for each other in the backend until their time is up, and then all be sent again.
const IN_FLIGHT: usize = 16;

#[derive(Debug)]
pub(super) struct Watchdog {
    epoch: Instant,
    /// When it looks again, in nanoseconds from `epoch`.
    wakes_at: AtomicU64,
    /// Told when it has to look earlier than that.
    earlier: Arc<Notify>,
    running: AtomicBool,
    in_flight: Semaphore,
}

const NEVER: u64 = u64::MAX;

impl Watchdog {
    pub(super) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            wakes_at: AtomicU64::new(NEVER),
            earlier: Arc::default(),
            running: AtomicBool::new(false),
            in_flight: Semaphore::new(IN_FLIGHT),
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(NEVER - 1)
    }

    /// Sees to it that the task looks at the lanes no later than `at`.
    pub(super) fn look_at(&self, engine: &Arc<Engine>, at: Instant) {
        let at = self.nanos(at);
        if self.wakes_at.load(Ordering::SeqCst) <= at {
            return;
        }
        if self.wakes_at.fetch_min(at, Ordering::SeqCst) > at {
            self.earlier.notify_one();
        }
        self.start(engine);
    }

    fn start(&self, engine: &Arc<Engine>) {
        if !self.running.swap(true, Ordering::SeqCst) {
            let running = Running(Arc::downgrade(engine));
            let earlier = Arc::clone(&self.earlier);
            engine.spawner.spawn(run(running, earlier));
        }
    }
}

/// Says that the task is gone, also when its runtime drops it: the next grant starts another.
struct Running(Weak<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            engine.watchdog.running.store(false, Ordering::SeqCst);
            engine.watchdog.wakes_at.store(NEVER, Ordering::SeqCst);
        }
    }
}

async fn run(running: Running, earlier: Arc<Notify>) {
    loop {
        // Held for the round only: a manager that nobody uses any more must be able to go.
        let Some(engine) = running.0.upgrade() else {
            return;
        };
        // From here on a grant that is due earlier than `NEVER` leaves its time, and a ring.
        engine.watchdog.wakes_at.store(NEVER, Ordering::SeqCst);
        let Some(next) = round(&engine) else {
            drop(running);
            // What was granted between the walk and the flag found the flag set.
            if engine.watchdog.wakes_at.load(Ordering::SeqCst) != NEVER || anything_held(&engine) {
                engine.watchdog.start(&engine);
            }
            return;
        };
        let watchdog = &engine.watchdog;
        watchdog
            .wakes_at
            .fetch_min(watchdog.nanos(next), Ordering::SeqCst);
        drop(engine);
        tokio::select! {
            () = sleep_until(next) => {}
            () = earlier.notified() => {}
        }
    }
}

fn anything_held(engine: &Engine) -> bool {
    let mut held = false;
    engine
        .lanes
        .for_each(|_, lane| held |= lane.holder().is_some());
    held
}

/// Walks the lanes once. When to walk again; `None` if nothing is held.
fn round(engine: &Arc<Engine>) -> Option<Instant> {
    let mut next = None;
    let mut earliest = |at: Instant| next = Some(next.map_or(at, |next: Instant| next.min(at)));
    let mut lost = Vec::new();
    let mut renewals = Vec::new();
    let now = Instant::now();
    engine.lanes.for_each(|key, lane| match lane.due(key, now) {
        Due::Never => {}
        Due::Later(at) => earliest(at),
        Due::Renew(renewal, until) => {
            earliest(until);
            renewals.push(renewal);
        }
        Due::Lost(grant, next) => lost.push((key.clone(), grant, next)),
    });
    // No renewal may be sent after a release: a lane that has a renewal on the wire, as these have
    // from here on, holds its release back until the answer.
    let mut renewals = renewals.into_iter().peekable();
    while renewals.peek().is_some() {
        engine.spawner.spawn(renew(Outgoing {
            engine: Arc::clone(engine),
            batch: renewals.by_ref().take(BATCH).collect(),
        }));
    }
    for (key, grant, next) in lost {
        grant.lose();
        engine.follow(&key, next);
    }
    next
}

/// Renewals on the wire. Dropped with the runtime before the answer, they count as failed: the lanes
/// must not go on waiting for it, with a renewal or with a release.
struct Outgoing {
    engine: Arc<Engine>,
    batch: Vec<Renewal>,
}

impl Outgoing {
    /// While it waited for its turn, locks were given back or lost: none of them is renewed.
    fn drop_unwanted(&mut self) {
        let engine = &self.engine;
        let now = Instant::now();
        self.batch.retain(|renewal| {
            let wanted = engine
                .lanes
                .with(&renewal.key, |lane| lane.wants(renewal, now));
            if !wanted {
                let outcome = Err(BackendError::unknown("not sent"));
                answered(engine, renewal, now, &outcome);
            }
            wanted
        });
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        for renewal in std::mem::take(&mut self.batch) {
            let outcome = Err(BackendError::unknown("the runtime was shut down"));
            answered(&self.engine, &renewal, Instant::now(), &outcome);
        }
    }
}

/// One batch, beside the others and beside the walk: one that hangs delays no other, but for those
/// that wait for its turn.
async fn renew(mut outgoing: Outgoing) {
    let engine = Arc::clone(&outgoing.engine);
    // Never closed, so always a turn.
    let _turn = engine.watchdog.in_flight.acquire().await;
    outgoing.drop_unwanted();
    if outgoing.batch.is_empty() {
        return;
    }
    let sent_at = Instant::now();
    let outcomes = Arc::clone(&engine.backend)
        .renew(outgoing.batch.clone())
        .await;
    for (renewal, outcome) in std::mem::take(&mut outgoing.batch).iter().zip(&outcomes) {
        answered(&engine, renewal, sent_at, outcome);
    }
}

fn answered(
    engine: &Arc<Engine>,
    renewal: &Renewal,
    sent_at: Instant,
    outcome: &Result<Renewed, BackendError>,
) {
    let key: &LockKey = &renewal.key;
    let now = Instant::now();
    let answered = engine
        .lanes
        .with(key, |lane| lane.renewed(renewal, sent_at, outcome, now));
    match answered {
        Answered::Held(next_look) => engine.watchdog.look_at(engine, next_look),
        Answered::Lost(grant, next) => {
            grant.lose();
            engine.follow(key, next);
        }
        Answered::Returning => engine.releaser.enqueue(engine, key.clone()),
        Answered::Stale => {}
    }
}
