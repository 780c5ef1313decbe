//! The watchdog: one task per manager and runtime that renews leases, reports losses and takes over
//! stuck work.
//!
//! It checks the lanes that are due in the index of its runtime and sleeps until the next deadline. A
//! lock held for less than a third of its lease thus costs it nothing. It ends when no lane is left.
//!
//! After an outage of the backend, all renewals are due at once, so that losses are reported
//! immediately. Timers do not advance during a suspend of the machine, so the task reads the clock every
//! 50 ms while a lane exists.

use std::sync::{Arc, Weak};

use tokio::sync::Semaphore;
use tokio::time::sleep_until;

use super::clock::{Moment, suspended};
use super::engine::Engine;
use super::home::{Current, Home};
use super::lane::{Look, Replied};
use super::table::{DueRenewal, Round};
use super::turns::Turns;
use super::wake::TICK;
use crate::Error;
use crate::backend::{BackendError, Renewal, Renewed};
use crate::observe::Reply;
use crate::task::RuntimeId;

/// The most leases of one command.
const BATCH: usize = 100;

/// Makes the watchdog of this runtime check its lanes at `at` or earlier.
pub(super) fn set(engine: &Arc<Engine>, home: RuntimeId, at: Moment) {
    if let Some(found) = engine.homes.get(home) {
        found.watchdog.set(at);
        start(engine, &found);
    } else if let Some(other) = engine.homes.any() {
        // The runtime has ended, so another one takes over its work.
        adopt(engine, home, &other);
    }
}

impl Engine {
    /// Returns the runtime for work that the caller begins.
    ///
    /// # Errors
    ///
    /// Returns [`Misconfigured`](crate::ErrorKind::Misconfigured) outside a runtime, and in one without
    /// timers.
    #[inline]
    pub(super) fn current_home(self: &Arc<Self>) -> Result<RuntimeId, Error> {
        match self.homes.checked() {
            Some(home) => Ok(home),
            None => self.check_home(),
        }
    }

    #[cold]
    fn check_home(self: &Arc<Self>) -> Result<RuntimeId, Error> {
        match self.homes.current()? {
            Current::Known(home) => Ok(home),
            Current::New(home) => {
                adopt_all(self, home);
                Ok(home)
            }
        }
    }
}

/// Moves every lane whose runtime has ended to `home`.
pub(super) fn adopt_all(engine: &Arc<Engine>, home: RuntimeId) {
    let Some(home) = engine.homes.get(home) else {
        return;
    };
    for ended in engine.lanes.homes() {
        if engine.homes.get(ended).is_none() {
            adopt(engine, ended, &home);
        }
    }
    engine.resolve_kept(&home);
    home.watchdog.set(Moment::now());
    start(engine, &home);
}

/// Moves the background work of an ended runtime to another.
fn adopt(engine: &Arc<Engine>, ended: RuntimeId, home: &Arc<Home>) {
    let now = Moment::now();
    let all = engine.lanes.adopt(ended, home.id, now);
    engine.carry_out_all(all);
    home.watchdog.set(now);
    start(engine, home);
}

/// Starts the task in this runtime, unless it already runs.
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

/// Reports the end of the task, even if its runtime drops it.
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
            // An entry added between the last check and the flag did not start a task.
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
    let mut ticked = false;
    loop {
        // Held only for one round, so the manager can be dropped.
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
            due => {
                if let Some(due) = due {
                    engine.tally.watchdog_late(now.since(due));
                }
                alarm.clear();
                if let Some(next) = round(&engine, &home, now) {
                    alarm.next(next);
                    continue;
                }
                running.over = true;
                return;
            }
        };
        // Only after a tick, because each of many brief locks would start and end a task otherwise.
        if std::mem::take(&mut ticked) && engine.lanes.forget_if_empty() {
            alarm.clear();
            continue;
        }
        drop(engine);
        let wakes_at = wakes_at.min(now + TICK);
        tokio::select! {
            biased;
            () = sleep_until(wakes_at.into()) => ticked = true,
            () = alarm.earlier.notified() => {}
            _ = recoveries.next() => {
                if let Some(engine) = running.engine.upgrade() {
                    mark_suspect(&engine, &home);
                }
            }
        }
    }
}

/// Makes the renewals of all held locks due.
fn mark_suspect(engine: &Arc<Engine>, home: &Home) {
    let now = Moment::now();
    let all = engine.lanes.for_each(|_, lane, _| lane.mark_suspect(now));
    engine.carry_out_all(all);
    home.watchdog.next(now);
}

fn reject_late(engine: &Arc<Engine>, now: Moment) {
    let all = engine.lanes.for_each(|key, lane, effects| {
        lane.reject_late(now, effects);
        lane.admit(key, now, effects);
    });
    engine.carry_out_all(all);
}

/// Runs one round. Returns the time of the next one, or `None` if no lane is left to check.
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
    // No renewal may be sent after a release, so the lanes of these renewals delay their release until
    // the reply.
    let mut turns = Turns::default();
    for batch in engine.in_batches(renewals.into_iter().flatten(), BATCH, |due| &due.key) {
        let turns = turns.of(engine, &batch[0].key);
        let renewal = renew(Arc::clone(engine), home.id, batch, turns);
        home.runtime.spawn(renewal);
    }
    engine.carry_out_all(effects);
    next
}

/// Sends one batch, concurrently with other batches and rounds. A batch that hangs delays only batches
/// of its group that wait for its turn.
async fn renew(
    engine: Arc<Engine>,
    home: RuntimeId,
    batch: Vec<DueRenewal>,
    turns: Arc<Semaphore>,
) {
    let _turn = turns.acquire().await;
    // After the wait, in which a due renewal takes less memory than the renewal.
    let renewals = batch.into_iter().map(|due| {
        let DueRenewal {
            key,
            lease,
            ttl,
            mode,
        } = due;
        Renewal::new(key, engine.lease_id(lease), ttl).with_mode(mode)
    });
    let mut batch: Vec<_> = renewals.collect();
    // Locks may have been released or lost during the wait, and must not be renewed.
    let now = Moment::now();
    batch.retain(|renewal| {
        engine.event(&renewal.key, |lane, effects| {
            lane.still_wants(renewal, Replied { home, now }, effects)
        })
    });
    if batch.is_empty() {
        return;
    }
    let sent_at = Moment::now();
    // Only the end of the runtime drops this await; the leases then expire and the guards report it.
    let outcomes = Arc::clone(&engine.backend).renew(batch.clone()).await;
    engine.renewed(&batch, &outcomes);
    for (renewal, outcome) in batch.iter().zip(&outcomes) {
        engine.tally.renewed(match outcome {
            Ok(Renewed::Renewed | Renewed::Wanted) => Reply::Done,
            Ok(Renewed::NotHeld) => Reply::NotHeld,
            Err(_) => Reply::Failed,
        });
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
        // Reads the clock for each lane: a loss that a caller has observed must not be undone.
        let now = Moment::now();
        lane.renewed(renewal, sent_at, outcome, Replied { home, now }, effects);
    });
}

#[cfg(test)]
mod tests;
