//! The watchdog: one task per manager that renews leases, reports losses, rejects waiters at their deadlines, takes
//! over commands that do not run near their callers, and sends the releases that are unconfirmed.
//!
//! It checks the lanes that are due in the index and sleeps until the next deadline. A lock held for less than a third of
//! its lease thus costs it nothing. It ends when no lane and no unconfirmed release is left.
//!
//! After an outage of the backend, all renewals and unconfirmed releases are due at once, so that losses are reported
//! immediately. Timers do not advance during a suspend of the machine, so the task reads the clock every 50 ms. After a
//! suspend, it thus sends the renewals that are due, and reports the locks that have ended.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::Semaphore;
use tokio::time::sleep_until;

use super::{releaser, unconfirmed};
use crate::backend::{Renewal, Renewed};
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::engine::home::{Home, HomeEnded};
use crate::lock::engine::unconfirmed::IN_FLIGHT;
use crate::lock::engine::wake::TICK;
use crate::lock::table::DueRenewal;
use crate::observe::Reply;
use crate::task::{is_panicking, until_false};
use crate::{Error, ErrorKind};

/// The most leases of one command.
const BATCH: usize = 100;

/// Makes the watchdog check its lanes at `at` or earlier.
pub(crate) fn set(engine: &Arc<Engine>, at: Moment) {
    engine.home.watchdog.set(at, engine.home.clock);
    start(engine);
}

/// Makes the watchdog send the unconfirmed releases that are due.
pub(super) fn wake(engine: &Arc<Engine>) {
    engine.home.watchdog.earlier.notify_one();
    start(engine);
}

/// Starts the task, unless it already runs.
pub(crate) fn start(engine: &Arc<Engine>) {
    if engine.home.watchdog.start() {
        engine.home.unconfirmed.keep(engine);
        let running = Running {
            engine: Arc::downgrade(engine),
            home: Arc::clone(&engine.home),
            began: false,
            over: false,
        };
        engine.home.spawn(run(running));
    }
}

impl Engine {
    /// Checks that the home runs, as far as is known.
    ///
    /// # Errors
    ///
    /// Returns [`Unavailable`](ErrorKind::Unavailable) if it has ended.
    #[inline]
    pub(crate) fn require_home(self: &Arc<Self>) -> Result<(), Error> {
        match self.home.may_have_ended() {
            false => Ok(()),
            true => self.check_home(),
        }
    }

    #[cold]
    fn check_home(self: &Arc<Self>) -> Result<(), Error> {
        match self.home.check() {
            Some(false) => Ok(()),
            Some(true) => {
                start(self);
                releaser::start(self);
                Ok(())
            }
            None => Err(Error::new(ErrorKind::Unavailable).with_source(HomeEnded)),
        }
    }
}

/// Reports the end of the task, even if its runtime drops it.
struct Running {
    /// An unused manager must be droppable.
    engine: Weak<Engine>,
    home: Arc<Home>,
    /// A runtime that has ended drops a new task unpolled. Another one would end likewise.
    began: bool,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Unconfirmed releases keep the engine until then.
        let engine = self.engine.upgrade();
        self.home.watchdog.stopped();
        if !self.over {
            self.home.task_was_dropped();
        }
        // After a panic of a subscriber or waker of the program, or an entry that was added between the last check and
        // the flag. A home that has ended drops the new task.
        let continues = self.over || self.began && is_panicking();
        if !continues {
            if let Some(engine) = &engine {
                engine.end_keeps();
            }
            self.home.unconfirmed.stopped();
            if self.home.is_over() {
                // The leases expire.
                self.home.unconfirmed.abandon();
            }
        }
        if continues
            && let Some(engine) = engine
            && (engine.lanes.has_deadlines() || !self.home.unconfirmed.is_empty())
        {
            start(&engine);
        }
    }
}

async fn run(mut running: Running) {
    running.began = true;
    let Some(mut recoveries) = running.engine.upgrade().map(|it| it.backend.recoveries()) else {
        return;
    };
    let home = Arc::clone(&running.home);
    let alarm = &home.watchdog;
    let mut ticked = false;
    loop {
        // Held only for one round, so the manager can be dropped.
        let Some(engine) = running.engine.upgrade() else {
            running.over = true;
            return;
        };
        let now = engine.now();
        unconfirmed::send(&engine, now);
        let wakes_at = match alarm.time() {
            Some(at) if at > now => at,
            due => {
                if let Some(due) = due {
                    engine.tally.watchdog_late(now.since(due));
                }
                alarm.clear();
                match round(&engine, &home, now) {
                    Some(next) => {
                        alarm.next(next);
                        continue;
                    }
                    None if home.unconfirmed.is_empty() => {
                        running.over = true;
                        return;
                    }
                    None => Moment::LAST,
                }
            }
        };
        if std::mem::take(&mut ticked) {
            if home.releases.is_stuck() {
                releaser::take_over(&engine);
            }
            // Only after a tick, because each of many brief locks would start and end a task otherwise.
            if engine.lanes.forget_if_empty() {
                alarm.clear();
                continue;
            }
        }
        drop(engine);
        let wakes_at = wakes_at.min(now + TICK);
        tokio::select! {
            biased;
            () = sleep_until(wakes_at.into()) => ticked = true,
            () = alarm.earlier.notified() => {}
            _ = recoveries.next() => {
                if let Some(engine) = running.engine.upgrade() {
                    require_renewal(&engine);
                }
                // Other processes may wait for these keys, so they are retried at once.
                home.unconfirmed.retry_now();
            }
        }
    }
}

/// Makes the renewals of all held locks due.
fn require_renewal(engine: &Arc<Engine>) {
    let now = engine.now();
    for key in engine.lanes.keys() {
        engine.event(&key, now, |lane, _| lane.require_renewal(now));
    }
}

/// Runs one round. Returns the time of the next one, or `None` if no lane is left to check.
fn round(engine: &Arc<Engine>, home: &Arc<Home>, now: Moment) -> Option<Moment> {
    let due = engine.lanes.check(now);
    // No renewal may be sent after a release, so the lanes of these renewals delay their release until
    // the reply.
    let mut slots = HashMap::new();
    for batch in engine.in_batches(due.renewals.into_iter().flatten(), BATCH, |due| &due.key) {
        let slots = slots.entry(engine.backend.group(&batch[0].key));
        let slots = slots.or_insert_with(|| Arc::new(Semaphore::new(IN_FLIGHT)));
        let renewal = renew(Arc::clone(engine), batch, Arc::clone(slots));
        home.spawn(renewal);
    }
    // Nothing else returns the leases of the other keys if code of the program panics.
    let mut due_effects = due.effects.into_iter();
    until_false(|| {
        let next = due_effects.next();
        next.map(|(key, mut effects)| engine.carry_out(&key, &mut effects))
            .is_some()
    });
    due.next
}

/// Sends one batch, concurrently with other batches and rounds. A batch that hangs delays only batches
/// of its group that wait for a slot.
async fn renew(engine: Arc<Engine>, batch: Vec<DueRenewal>, slots: Arc<Semaphore>) {
    let _slot = slots.acquire().await;
    // After the wait, in which a due renewal takes less memory than the renewal.
    let renewals = batch
        .into_iter()
        .map(|due| Renewal::new(due.key, engine.lease_id(due.lease), due.ttl).with_mode(due.mode));
    let mut batch: Vec<_> = renewals.collect();
    // Locks may have been released or lost during the wait, and must not be renewed.
    let now = engine.now();
    batch.retain(|renewal| {
        engine.event(&renewal.key, now, |lane, effects| {
            lane.still_wants(renewal, effects)
        })
    });
    if batch.is_empty() {
        return;
    }
    let sent_at = engine.now();
    // Only the end of the runtime drops this await; the leases then expire and the guards report it.
    let outcomes = Arc::clone(&engine.backend).renew(batch.clone()).await;
    engine.renewed(&batch, &outcomes);
    for (renewal, outcome) in batch.iter().zip(&outcomes) {
        engine.tally.renewed(match outcome {
            Ok(Renewed::Renewed | Renewed::Wanted) => Reply::Done,
            Ok(Renewed::NotHeld) => Reply::NotHeld,
            Err(_) => Reply::Failed,
        });
        engine.event_now(&renewal.key, |lane, effects| {
            lane.renewed(renewal, sent_at, outcome, effects);
        });
    }
}

#[cfg(test)]
mod tests;
