//! The acquire loop: the one sequence of attempts by which a lane contends for a key.
//!
//! It runs at home, and the reader of a message polls it as well ([`early_poll`]). The first attempt of an acquire that
//! found the lane idle precedes it ([`first_attempt`](super::first_attempt)), so an uncontended lock costs
//! one round trip and no loop. The lease that the loop acquires is granted to the first waiter or released.
//!
//! A lane thus has at most one attempt in flight, and abandons none. The exception is a first attempt whose runtime
//! blocks: a loop replaces it, and the lease that it acquires is released.

mod early_poll;
mod pause;

use std::sync::{Arc, Weak};
use std::time::Duration;

use early_poll::LoopTask;
pub(crate) use pause::LONGEST_FOR_SLOT;
use pause::{FIRST_BACKOFF, REFRESH};
use tokio::sync::OwnedSemaphorePermit;

use super::command::{Outcome, judge, request};
use crate::backend::{Contended, Hints};
use crate::jitter::jittered;
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::engine::home::HomeEnded;
use crate::lock::lane::{LastReply, PlaceChange, Replied, Wakeup};
use crate::lock::lease::{LeaseNumber, PLACE, QueuePlace, ReleasedTo, Terms};
use crate::observe::WokenBy;
use crate::{Error, ErrorKind, LockKey};

/// How long this process waits for other processes to acquire a key that it released for them.
const POLITE: Duration = Duration::from_millis(5);

/// Contends for a key as a task, until an acquire of this process holds it or none waits for it.
///
/// If dropped with its runtime, or not started because that has ended, it rejects the waiters.
pub(crate) struct AcquireLoop {
    engine: Arc<Engine>,
    key: LockKey,
    wakeup: Wakeup,
    /// The task, which the reader of a hint polls.
    task: Weak<LoopTask>,
    hints: Option<Hints>,
    /// Whether the subscription has taken effect.
    listens: bool,
    /// The number of processes in the queue of the backend, if this one is in it.
    queued: Option<u32>,
    /// When to poll according to the backend, and since when that is unchanged.
    poll_after: Option<(Duration, Moment)>,
    backoff: Duration,
    /// When the holder's lease expires.
    holder_expires: Option<Moment>,
    /// Whether a hint ends a pause.
    hears: bool,
    /// What ended the last pause.
    woken_by: Option<WokenBy>,
    /// The slot in the line of the waiters for permits.
    slot: Option<OwnedSemaphorePermit>,
    over: bool,
}

impl AcquireLoop {
    pub(crate) fn new(engine: &Arc<Engine>, key: &LockKey, wakeup: Wakeup) -> Self {
        Self {
            engine: Arc::clone(engine),
            key: key.clone(),
            wakeup,
            task: Weak::new(),
            hints: None,
            listens: false,
            queued: None,
            poll_after: None,
            backoff: FIRST_BACKOFF,
            holder_expires: None,
            hears: true,
            woken_by: None,
            slot: None,
            over: false,
        }
    }

    /// Starts the task, which first lets the processes in `released_to` acquire the key. Without that, the process
    /// that is notified first, mostly the same one, would win each time.
    pub(crate) fn spawn(mut self, released_to: ReleasedTo) {
        let engine = Arc::clone(&self.engine);
        let task = LoopTask::new(&engine, |task| {
            self.task = task;
            Box::pin(self.run(released_to))
        });
        engine.home.spawn(task.run());
    }

    /// Attempts, subscribes, attempts again, then waits. The second attempt, caused by the first hint of
    /// the new subscription, detects a release between the first attempt and the subscription.
    ///
    /// If the backend has a queue, that attempt enters it as a listener. If this process has just transferred the key, the
    /// subscription comes first. A place that the release entered needs no attempt before the message of its transfer,
    /// or its refresh a second later, if the subscription has lingered.
    async fn run(mut self, released_to: ReleasedTo) {
        self.contend(released_to).await;
        self.over = true;
    }

    async fn contend(&mut self, released_to: ReleasedTo) {
        let is_in_line = self.key.is_of_permit();
        if is_in_line && !self.take_slot().await {
            return;
        }
        // During a pause, the subscription takes effect. The first attempt then enters the queue as a listener.
        let listens_soon = is_in_line && !self.listens;
        if released_to != ReleasedTo::Nobody || listens_soon {
            let first = match self.take_over_place(released_to.notified_behind()) {
                true => REFRESH,
                false => POLITE,
            };
            // Without a queue, a hint is for other processes.
            self.hears = released_to != ReleasedTo::WithoutQueue;
            let goes_on = self.pause(self.engine.now() + jittered(first), false).await;
            self.hears = true;
            if !goes_on {
                return;
            }
        }
        loop {
            let Some((sent, replied)) = self.attempt().await else {
                return;
            };
            let (now, mode) = (replied.now, replied.terms.mode);
            let place = self.place_after(sent, &replied);
            let outcome = judge(&self.engine, &self.key, replied);
            let Self { engine, key, .. } = &*self;
            match outcome {
                Outcome::Granted(lease) => {
                    if let Some(by) = self.woken_by {
                        engine.tally.woken(by);
                    }
                    return engine.event(key, now, |lane, effects| {
                        lane.granted(key, lease, effects);
                    });
                }
                Outcome::Never(error) => {
                    return engine.event(key, now, |lane, effects| {
                        lane.refused_for_good(mode, &error, effects);
                    });
                }
                Outcome::NotYet(seen) => {
                    // An unavailable backend gets one attempt per backoff step, whatever deadlines pass.
                    // In a queue, a process that listens is notified of its turn.
                    let is_notified =
                        place != PlaceChange::Out && self.listens && self.poll_after.is_none();
                    let last_attempt = matches!(seen, LastReply::Busy(_)) && !is_notified;
                    let again_at = self.next_attempt(&seen, now);
                    self.engine.event(&self.key, now, |lane, effects| {
                        lane.rejected(sent, seen, place, effects);
                    });
                    if !self.pause(again_at, last_attempt).await {
                        return;
                    }
                }
            }
        }
    }

    /// Takes over a place that a release entered, behind `notified_behind` processes. Returns `true` if the place needs
    /// no attempt before the message of its transfer.
    ///
    /// A subscription that lingered since the release has its first hint at once, and the transfer, if it came already.
    /// After a subscription that has not lingered, the first hint causes an attempt.
    fn take_over_place(&mut self, notified_behind: Option<u32>) -> bool {
        let Some(queued) = notified_behind else {
            return false;
        };
        self.queued = Some(queued);
        let hints = watch(&self.engine, &self.key, &self.task);
        self.listens = self.hints.insert(hints).take_release();
        self.listens
    }

    /// Returns the place in the queue of the backend after the attempt with the number `sent`.
    fn place_after(&mut self, sent: LeaseNumber, replied: &Replied) -> PlaceChange {
        let lease = replied.lease;
        match &replied.outcome {
            Ok(Contended::Waiting {
                queued: Some(queued),
                poll_after,
                ..
            }) => {
                self.queued = Some(*queued);
                let before = self.poll_after.filter(|(it, _)| Some(*it) == *poll_after);
                let first = || poll_after.map(|it| (it, replied.now));
                self.poll_after = before.or_else(first);
                let Terms { mode, limit, .. } = replied.terms;
                PlaceChange::In(QueuePlace { lease, mode, limit })
            }
            Err(error) if !error.may_have_taken_effect() => PlaceChange::Unchanged,
            outcome => {
                self.queued = None;
                // An earlier attempt under this lease entered the queue, and this one did not refresh it.
                if matches!(outcome, Ok(Contended::Waiting { .. })) && lease != sent {
                    self.engine.release_until_confirmed(&self.key, lease, PLACE);
                }
                PlaceChange::Out
            }
        }
    }

    /// Makes an attempt for the waiters, which wait in the queue of the backend. Returns its number with the reply, or
    /// `None` if no waiter is left.
    ///
    /// # Cancel safety
    ///
    /// Dropped only with the runtime.
    async fn attempt(&mut self) -> Option<(LeaseNumber, Replied)> {
        let Self { engine, key, .. } = self;
        let sent = LeaseNumber::of(engine.new_lease_id());
        let sent_at = engine.now();
        let begun = engine.event(key, sent_at, |lane, effects| {
            lane.begin_attempt(sent, effects)
        });
        let (lease, terms) = begun?;
        let request = request(key, engine.lease_id(lease), terms).with_listening(self.listens);
        let outcome = Arc::clone(&engine.backend).contend(request).await;
        let replied = Replied {
            lease,
            terms,
            sent_at,
            now: engine.now(),
            outcome,
        };
        Some((sent, replied))
    }
}

/// Watches a key. The reader of a message polls the task.
fn watch(engine: &Engine, key: &LockKey, task: &Weak<LoopTask>) -> Hints {
    let hints = engine.backend.watch(key, engine.id);
    hints.poll_early(Weak::clone(task) as _);
    hints
}

impl Drop for AcquireLoop {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // The end of its runtime drops the task early, and another one would not run.
        self.engine.home.task_was_dropped();
        let error = Error::new(ErrorKind::Unavailable).with_source(HomeEnded);
        self.engine
            .event(&self.key, self.engine.now(), |lane, effects| {
                lane.abandon_all(&self.wakeup, &error, effects);
            });
    }
}

#[cfg(test)]
mod tests;
