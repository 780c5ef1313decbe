//! Renews what is held, reports what is lost, and takes over what is stuck: one task per manager and
//! runtime.
//!
//! It looks at the lanes that are due in the index of its runtime, and sleeps until the next one is, so a
//! lock that is held for less than a third of its lease costs it nothing. It ends when no lane is left.
//! When the backend has been unreachable, everything is due at once: a loss is to be reported now. A timer
//! does not see that the machine was suspended, so while there is a lane the task looks at the clock every
//! 50 ms.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::sleep_until;

use super::clock::{Moment, suspended};
use super::engine::Engine;
use super::home::{Current, Home};
use super::lane::{Look, Replied};
use super::table::{DueRenewal, Round};
use crate::Error;
use crate::backend::{BackendError, BackendErrorKind, Renewal, Renewed};
use crate::task::RuntimeId;

/// The most leases of one command.
const BATCH: usize = 100;

/// The most commands of one group of keys, in one round, at a time. Each has only so long for its
/// reply: a thousand at once would wait for each other in the backend until their time is up, and
/// then all be sent again.
const IN_FLIGHT: usize = 16;

/// How late a resume is noticed at most.
const TICK: Duration = Duration::from_millis(50);

/// The watchdog of this runtime has to look no later than `at`.
pub(super) fn set(engine: &Arc<Engine>, home: RuntimeId, at: Moment) {
    if let Some(found) = engine.homes.get(home) {
        found.watchdog.set(at);
        start(engine, &found);
    } else if let Some(other) = engine.homes.any() {
        // It has ended: another runtime takes over its work.
        adopt(engine, home, &other);
    }
}

impl Engine {
    /// Returns the runtime for work that begins here.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](crate::ErrorKind::Misconfigured) outside of a runtime, and in one without timers.
    pub(super) fn current_home(self: &Arc<Self>) -> Result<RuntimeId, Error> {
        match self.homes.current()? {
            Current::Known(home) => Ok(home),
            Current::New(home) => {
                adopt_all(self, home);
                Ok(home)
            }
        }
    }
}

/// Lets `home` look at every lane whose own runtime has ended.
pub(super) fn adopt_all(engine: &Arc<Engine>, home: RuntimeId) {
    let Some(home) = engine.homes.get(home) else {
        return;
    };
    for ended in engine.lanes.homes() {
        if engine.homes.get(ended).is_none() {
            adopt(engine, ended, &home);
        }
    }
    home.watchdog.set(Moment::now());
    start(engine, &home);
}

/// Moves the background work of a runtime that has ended to another.
fn adopt(engine: &Arc<Engine>, ended: RuntimeId, home: &Arc<Home>) {
    let now = Moment::now();
    for (key, effects) in engine.lanes.adopt(ended, home.id, now) {
        engine.carry_out(&key, effects);
    }
    home.watchdog.set(now);
    start(engine, home);
}

/// Starts the task in this runtime unless it runs.
pub(super) fn start(engine: &Arc<Engine>, home: &Arc<Home>) {
    if home.watchdog.start() {
        let running = Running {
            engine: Arc::downgrade(engine),
            home: Arc::clone(home),
            over: false,
        };
        home.runtime.spawn(run(running));
    }
}

/// Reports that the task is gone, also when its runtime drops it.
struct Running {
    /// An unused manager must be droppable.
    engine: Weak<Engine>,
    home: Arc<Home>,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.home.watchdog.stopped();
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        if self.over {
            // What was entered between the last look and the flag found the flag set.
            if engine.lanes.has_deadlines(self.home.id) {
                start(&engine, &self.home);
            }
        } else {
            engine.homes.end(self.home.id);
            if let Some(other) = engine.homes.any() {
                adopt(&engine, self.home.id, &other);
            }
        }
    }
}

async fn run(mut running: Running) {
    let Some(mut recoveries) = running.engine.upgrade().map(|it| it.backend.recoveries()) else {
        return;
    };
    let home = Arc::clone(&running.home);
    let alarm = &home.watchdog;
    let mut known_suspends = suspended();
    loop {
        // Held for the round only.
        let Some(engine) = running.engine.upgrade() else {
            running.over = true;
            return;
        };
        let now = Moment::now();
        if suspended() > known_suspends {
            known_suspends = suspended();
            reject_late(&engine, now);
        }
        let wakes_at = match alarm.time() {
            Some(at) if at > now => at,
            _ => {
                alarm.clear();
                if let Some(next) = round(&engine, &home, now) {
                    alarm.next(next);
                    continue;
                }
                running.over = true;
                return;
            }
        };
        if engine.lanes.forget_if_empty() {
            alarm.clear();
            continue;
        }
        drop(engine);
        let wakes_at = wakes_at.min(now + TICK);
        tokio::select! {
            biased;
            () = sleep_until(wakes_at.into()) => {}
            () = alarm.earlier.notified() => {}
            () = recoveries.next() => {
                if let Some(engine) = running.engine.upgrade() {
                    mark_suspect(&engine, &home);
                }
            }
        }
    }
}

/// Everything that is held is due now.
fn mark_suspect(engine: &Arc<Engine>, home: &Home) {
    let now = Moment::now();
    let all = engine.lanes.for_each(|_, lane, _| lane.mark_suspect(now));
    for (key, effects) in all {
        engine.carry_out(&key, effects);
    }
    home.watchdog.next(now);
}

fn reject_late(engine: &Arc<Engine>, now: Moment) {
    let all = engine
        .lanes
        .for_each(|_, lane, effects| lane.reject_late(now, effects));
    for (key, effects) in all {
        engine.carry_out(&key, effects);
    }
}

/// Looks at what is due. Returns when to look again; `None` if there is nothing to watch.
fn round(engine: &Arc<Engine>, home: &Arc<Home>, now: Moment) -> Option<Moment> {
    let Round {
        renewals,
        effects,
        next,
    } = engine.lanes.look(Look {
        home: home.id,
        now,
        response_timeout: engine.response_timeout,
    });
    let renewals = renewals.into_iter().map(|due| {
        let DueRenewal { key, lease, ttl } = due;
        Renewal::new(key, engine.lease_id(lease), ttl)
    });
    // No renewal may be sent after a release: a lane that has a renewal in flight, as these have
    // from here on, holds its release back until the reply.
    let turns = Arc::new(Semaphore::new(IN_FLIGHT));
    for batch in engine.in_batches(renewals.collect(), BATCH, |renewal| &renewal.key) {
        let renewal = renew(Arc::clone(engine), home.id, batch, Arc::clone(&turns));
        home.runtime.spawn(renewal);
    }
    for (key, effects) in effects {
        engine.carry_out(&key, effects);
    }
    next
}

/// One batch, beside the others and beside the rounds: one that hangs delays no other, but for those
/// that wait for its turn.
async fn renew(
    engine: Arc<Engine>,
    home: RuntimeId,
    mut batch: Vec<Renewal>,
    turns: Arc<Semaphore>,
) {
    // Never closed, so always a turn.
    let _turn = turns.acquire().await;
    // While it waited, locks were released or lost: none of them is renewed.
    let now = Moment::now();
    batch.retain(|renewal| {
        let wanted = engine.event(&renewal.key, |lane, _| lane.wants_renewal(renewal, now));
        if !wanted {
            let kind = BackendErrorKind::Unavailable;
            let not_sent = Err(BackendError::refused(kind, "not sent"));
            replied(&engine, home, renewal, now, &not_sent);
        }
        wanted
    });
    if batch.is_empty() {
        return;
    }
    let sent_at = Moment::now();
    // Dropped here only with the runtime; then the leases expire and the guards report it.
    let outcomes = Arc::clone(&engine.backend).renew(batch.clone()).await;
    for (renewal, outcome) in batch.iter().zip(&outcomes) {
        replied(&engine, home, renewal, sent_at, outcome);
    }
}

fn replied(
    engine: &Arc<Engine>,
    home: RuntimeId,
    renewal: &Renewal,
    sent_at: Moment,
    outcome: &Result<Renewed, BackendError>,
) {
    engine.event(&renewal.key, |lane, effects| {
        // The time of each: a caller that looked and found the lock lost must have been right.
        let now = Moment::now();
        lane.renewed(renewal, sent_at, outcome, Replied { home, now }, effects);
    });
}

#[cfg(test)]
mod tests;
