//! The acquire loop: the one sequence of attempts by which a lane contends for a key.
//!
//! It starts inside the acquire that found the lane idle, so an uncontended lock costs one round trip
//! and no task. It continues as a task if that acquire has to wait, is dropped with its attempt in
//! flight, or is not polled while others wait. The task finishes the attempt. The lease that it
//! acquires is granted to the first waiter or released.
//!
//! A lane thus has at most one attempt in flight, and abandons none. The exception is a task in a
//! runtime that idles or blocks: another task replaces it, and the lease that the replaced task
//! acquires is released.

mod pause;
mod turn;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use pause::{FIRST_BACKOFF, REFRESH};
use tokio::sync::OwnedSemaphorePermit;

use super::attempt::{Attempt, Replied, unanswered};
use super::claim::Terms;
use super::clock::{Moment, Span};
use super::command::{Outcome, contend, judge};
use super::effect::Wakeup;
use super::engine::Engine;
use super::home::Home;
use super::lane::{Place, Refused, Seen};
use super::lease::LeaseNumber;
use super::place::{PLACE, QueuePlace};
use super::timeout::by;
use super::yielded::Yielded;
use crate::backend::{BackendError, Contended, Hints};
use crate::jitter::jittered;
use crate::observe::WokenBy;
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// How long this process waits for other processes to acquire a key that it released for them.
const POLITE: Duration = Duration::from_millis(5);

/// Contends for a key as a task, until an acquire of this process holds it or none waits for it.
///
/// If dropped with its runtime, or not started because that has ended, waiters in other runtimes
/// continue.
pub(super) struct AcquireLoop {
    engine: Arc<Engine>,
    key: LockKey,
    home: RuntimeId,
    wakeup: Wakeup,
    in_flight: Option<Attempt>,
    /// The lease and the TTL of the attempt whose reply is still to come.
    unanswered: Option<(LeaseNumber, Span)>,
    /// Whether an acquire sent the attempt in flight.
    took_over: bool,
    hints: Option<Hints>,
    /// Whether the subscription has taken effect.
    listens: bool,
    /// The number of processes in the queue of the backend, if this one is in it.
    queued: Option<u32>,
    /// When to poll according to the backend, and since when that is unchanged.
    poll_after: Option<(Duration, Moment)>,
    /// The number of hints left to other processes.
    yields_to: u32,
    backoff: Duration,
    /// When the holder's lease expires.
    holder_expires: Option<Moment>,
    /// What ended the last pause.
    woken_by: Option<WokenBy>,
    /// The turn in the line of the waiters for permits.
    turn: Option<OwnedSemaphorePermit>,
    over: bool,
}

impl AcquireLoop {
    pub(super) fn new(
        engine: &Arc<Engine>,
        key: &LockKey,
        home: RuntimeId,
        wakeup: Wakeup,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            key: key.clone(),
            home,
            wakeup,
            in_flight: None,
            unanswered: None,
            took_over: false,
            hints: None,
            listens: false,
            queued: None,
            poll_after: None,
            yields_to: 0,
            backoff: FIRST_BACKOFF,
            holder_expires: None,
            woken_by: None,
            turn: None,
            over: false,
        }
    }

    /// Sets an attempt in flight to continue with.
    pub(super) fn with_attempt(mut self, attempt: Attempt) -> Self {
        self.unanswered = Some((LeaseNumber::of(attempt.lease), attempt.terms.ttl));
        self.in_flight = Some(attempt);
        self.took_over = true;
        self
    }

    /// Starts the task, which first lets the processes in `yielded` acquire the key. Without that, the process
    /// that is notified first, mostly the same one, would win each time.
    pub(super) fn spawn(mut self, yielded: Yielded) {
        if let Some(home) = self.engine.home(self.home) {
            self.home = home.id;
            home.runtime.spawn(self.run(yielded));
        }
    }

    /// Attempts, subscribes, attempts again, then waits. The second attempt, caused by the first hint of
    /// the new subscription, detects a release between the first attempt and the subscription.
    ///
    /// If the backend has a queue, that attempt enters it as a listener. If this process has just transferred the key, the
    /// subscription comes first. A place that the release entered needs no attempt before the message of its transfer,
    /// or its refresh a second later, if the subscription has lingered.
    async fn run(mut self, yielded: Yielded) {
        self.contend(yielded).await;
        self.over = true;
    }

    async fn contend(&mut self, yielded: Yielded) {
        self.yields_to = match yielded {
            Yielded::ToNobody | Yielded::ToQueue { .. } => 0,
            // The first hint only reports the subscription.
            Yielded::To(watchers) => watchers.get().saturating_add(1),
            Yielded::ToUnknown => 2,
        };
        let is_in_line = self.key.is_of_permit() && self.in_flight.is_none();
        if is_in_line && !self.take_turn().await {
            return;
        }
        // During a pause, the subscription takes effect. The first attempt then enters the queue as a listener.
        let listens_soon = is_in_line && !self.listens;
        if yielded != Yielded::ToNobody || listens_soon {
            let first = match self.take_over_place(yielded.notified_behind()) {
                true => REFRESH,
                false => POLITE,
            };
            if !self.pause(Moment::now() + jittered(first), false).await {
                return;
            }
        }
        loop {
            let Some(replied) = self.attempt().await else {
                return;
            };
            let (sent, replied) = replied;
            let (now, mode) = (replied.now, replied.terms.mode);
            let place = self.place_after(sent, &replied);
            let (outcome, unresolved) = judge(&self.engine, replied);
            if let Some((lease, ttl)) = unresolved {
                (self.engine).resolve(&self.key, lease, unanswered(ttl), self.home);
            }
            let Self {
                engine,
                key,
                wakeup,
                home,
                ..
            } = &*self;
            match outcome {
                Outcome::Granted(lease) => {
                    if let Some(by) = self.woken_by {
                        engine.tally.woken(by);
                    }
                    return engine.event(key, |lane, effects| {
                        lane.granted(key, wakeup, lease, *home, now, effects);
                    });
                }
                Outcome::Never(error) => {
                    return engine.event(key, |lane, effects| {
                        lane.refused_for_good(wakeup, mode, &error, *home, now, effects);
                    });
                }
                Outcome::NotYet(seen) => {
                    // An unavailable backend gets one attempt per backoff step, whatever deadlines pass.
                    // In a queue, a process that listens is notified of its turn.
                    let is_notified =
                        place != Place::Out && self.listens && self.poll_after.is_none();
                    let last_attempt = matches!(seen, Seen::Busy(_)) && !is_notified;
                    let again_at = self.next_attempt(&seen, now);
                    let refused = Refused {
                        sent,
                        seen,
                        place,
                        home: self.home,
                    };
                    self.engine.event(&self.key, |lane, effects| {
                        lane.refused(&self.wakeup, refused, now, effects);
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
        let hints = self.hints.insert(self.engine.watch(&self.key));
        self.listens = hints.take_release();
        self.listens
    }

    /// Returns the place in the queue of the backend after the attempt with the number `sent`.
    fn place_after(&mut self, sent: LeaseNumber, replied: &Replied) -> Place {
        let lease = LeaseNumber::of(replied.lease);
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
                Place::In(QueuePlace { lease, mode, limit })
            }
            Err(error) if !error.may_have_taken_effect() => Place::Unchanged,
            outcome => {
                self.queued = None;
                // An earlier attempt under this lease entered the queue, and this one did not refresh it.
                if matches!(outcome, Ok(Contended::Waiting { .. })) && lease != sent {
                    self.engine.resolve(&self.key, lease, PLACE, self.home);
                }
                Place::Out
            }
        }
    }

    /// Makes an attempt, or continues the one in flight, and returns the number of the attempt with the reply.
    /// Returns `None` if no waiter is left.
    ///
    /// # Cancel safety
    ///
    /// Dropped only with the runtime.
    async fn attempt(&mut self) -> Option<(LeaseNumber, Replied)> {
        let (sent, mut attempt) = match self.in_flight.take() {
            Some(attempt) => (LeaseNumber::of(attempt.lease), attempt),
            None => {
                let sent = LeaseNumber::of(self.engine.new_lease_id());
                let now = Moment::now();
                let due = self.engine.stuck_at(now);
                let (lease, terms) = self.engine.event(&self.key, |lane, effects| {
                    lane.begin_attempt(&self.wakeup, sent, now, due, effects)
                })?;
                self.unanswered = Some((lease, terms.ttl));
                let lease = self.engine.lease_id(lease);
                let (engine, key, listens) = (&self.engine, &self.key, self.listens);
                (
                    sent,
                    contend(engine, key, lease, terms, listens, Moment::now()),
                )
            }
        };
        if !self.took_over {
            let replied = poll_fn(|cx| attempt.poll_reply(cx)).await;
            self.unanswered = None;
            return Some((sent, replied));
        }
        // The reply may depend on the acquire's runtime, which may not run.
        self.took_over = false;
        let now = Moment::now();
        let due = self.engine.stuck_at(now);
        let reply = poll_fn(|cx| attempt.poll_reply(cx));
        let replied = by(due, now, reply).await;
        self.unanswered = None;
        Some((sent, replied.unwrap_or_else(|| self.leave_behind(attempt))))
    }

    /// Returns an unknown result for an attempt without a reply, whose lease a task then releases.
    fn leave_behind(&self, mut attempt: Attempt) -> Replied {
        let unknown = Replied {
            lease: attempt.lease,
            terms: attempt.terms,
            sent_at: attempt.sent_at,
            now: Moment::now(),
            outcome: Err(BackendError::unknown(NoReply)),
        };
        if let Some(home) = self.engine.home(self.home) {
            home.unresolved.attempt_left_behind();
            let left = LeftBehind {
                engine: Arc::clone(&self.engine),
                home: Arc::clone(&home),
                key: self.key.clone(),
                lease: LeaseNumber::of(attempt.lease),
                ttl: unanswered(attempt.terms.ttl),
                may_hold: true,
            };
            home.runtime.spawn(async move {
                let replied = poll_fn(|cx| attempt.poll_reply(cx)).await;
                left.end(&replied);
            });
        }
        unknown
    }
}

impl Drop for AcquireLoop {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // Only the end of its runtime drops the task early.
        self.engine.homes.end(self.home);
        let error = Error::new(ErrorKind::Unavailable).with_source(RuntimeEnded);
        let now = Moment::now();
        let drove = self.engine.event(&self.key, |lane, effects| {
            lane.abandon(&self.wakeup, self.home, &error, now, effects)
        });
        // The lease was released when another task replaced this one. The attempt may have taken effect since.
        if !drove && let Some((lease, ttl)) = self.unanswered {
            (self.engine).resolve(&self.key, lease, unanswered(ttl), self.home);
        }
    }
}

/// An attempt whose reply only a task awaits. Its lease is released after the reply, or when the runtime drops the
/// task. Until then, it counts as unresolved.
struct LeftBehind {
    engine: Arc<Engine>,
    home: Arc<Home>,
    key: LockKey,
    lease: LeaseNumber,
    ttl: Span,
    /// Whether the lease may hold its key, or be in its queue.
    may_hold: bool,
}

impl LeftBehind {
    fn end(mut self, replied: &Replied) {
        let outside = matches!(replied.outcome, Ok(Contended::Waiting { queued: None, .. }));
        self.may_hold = !outside;
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        if self.may_hold {
            self.engine
                .resolve(&self.key, self.lease, self.ttl, self.home.id);
        }
        self.home.unresolved.attempt_ended();
    }
}

/// The runtime that drove the attempt may have stopped.
#[derive(Debug, thiserror::Error)]
#[error("no reply to the attempt of an unpolled acquire")]
struct NoReply;

/// The task that contended for the lock was dropped with its runtime.
#[derive(Debug, thiserror::Error)]
#[error("runtime of the waiter was shut down")]
struct RuntimeEnded;

#[cfg(test)]
mod tests;
