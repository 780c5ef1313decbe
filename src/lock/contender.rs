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

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep_until;

use super::attempt::{Attempt, Replied};
use super::clock::Moment;
use super::command::{Outcome, contend, judge};
use super::effect::Wakeup;
use super::engine::Engine;
use super::lane::{Place, Refused, Seen};
use super::lease::LeaseNumber;
use super::timeout::by;
use super::yielded::{PLACE, Yielded};
use crate::backend::{BackendError, Contended, Hint, Hints};
use crate::jitter::{jittered, up_to};
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// The longest delay that a lost notification causes.
const BACKSTOP: Duration = Duration::from_secs(1);

/// The time after which a process refreshes its place in the queue of the backend.
const REFRESH: Duration = Duration::from_millis(900);

/// The longest time between two attempts of a process in a queue that no notification reaches.
const POLL: Duration = Duration::from_millis(100);

/// The part of a wait without progress after which such a process attempts again.
const POLL_PART: u32 = 10;

/// The number of processes in a queue that attempt at once after a hint that no transfer caused.
const AT_ONCE: u32 = 8;

/// The pause after a failed attempt, doubled after each further one up to [`BACKSTOP`].
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// The time between a waiter's last attempt and its deadline, for the reply to arrive.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);

/// How long this process waits for other processes to acquire a key that it released for them.
const POLITE: Duration = Duration::from_millis(5);

/// How long this process waits after another one released the key, while further ones wait.
const POLITE_AGAIN: Duration = Duration::from_millis(2);

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
            took_over: false,
            hints: None,
            listens: false,
            queued: None,
            poll_after: None,
            yields_to: 0,
            backoff: FIRST_BACKOFF,
            over: false,
        }
    }

    /// Sets an attempt in flight to continue with.
    pub(super) fn with_attempt(mut self, attempt: Attempt) -> Self {
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
    /// If the backend has a queue, that attempt enters it as a listener. If this process has just transferred
    /// the key, the first attempt would fail, so the subscription comes first.
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
        if yielded != Yielded::ToNobody {
            let soon = Moment::now() + jittered(POLITE);
            if !self.pause(soon, false).await {
                return;
            }
        }
        loop {
            let Some(replied) = self.attempt().await else {
                return;
            };
            let (sent, replied) = replied;
            let now = replied.now;
            let place = self.place_after(sent, &replied);
            let (outcome, unresolved) = judge(&self.engine, replied);
            if let Some((lease, ttl)) = unresolved {
                // The attempt may have entered the queue.
                let ttl = ttl.max(PLACE);
                self.engine.resolve(&self.key, lease, ttl, self.home);
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
                    return engine.event(key, |lane, effects| {
                        lane.granted(key, wakeup, lease, *home, now, effects);
                    });
                }
                Outcome::Never(error) => {
                    return engine.event(key, |lane, effects| {
                        lane.refused_for_good(wakeup, &error, effects);
                    });
                }
                Outcome::NotYet(seen) => {
                    // An unavailable backend gets one attempt per backoff step, whatever deadlines pass.
                    // In a queue, a process that listens is notified of its turn.
                    let is_notified = place != Place::Out && self.listens;
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
                Place::In(lease)
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
                let lease = self.engine.lease_id(lease);
                let (engine, key, listens) = (&self.engine, &self.key, self.listens);
                (
                    sent,
                    contend(engine, key, lease, terms, listens, Moment::now()),
                )
            }
        };
        if !self.took_over {
            return Some((sent, poll_fn(|cx| attempt.poll_reply(cx)).await));
        }
        // The reply may depend on the acquire's runtime, which may not run.
        self.took_over = false;
        let now = Moment::now();
        let due = self.engine.stuck_at(now);
        let reply = poll_fn(|cx| attempt.poll_reply(cx));
        let replied = by(due, now, reply).await;
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
            let (engine, key, id) = (Arc::clone(&self.engine), self.key.clone(), home.id);
            home.runtime.spawn(async move {
                let replied = poll_fn(|cx| attempt.poll_reply(cx)).await;
                let (lease, ttl) = (LeaseNumber::of(replied.lease), replied.terms.ttl);
                if !matches!(replied.outcome, Ok(Contended::Waiting { queued: None, .. })) {
                    engine.resolve(&key, lease, ttl, id);
                }
            });
        }
        unknown
    }

    /// Waits for a hint, for `again_at`, or for the last attempt of the first waiter. Returns `false` if
    /// no waiter is left; then the lane is idle.
    async fn pause(&mut self, mut again_at: Moment, last_attempt: bool) -> bool {
        let asleep_since = Moment::now();
        let hints = (self.hints).get_or_insert_with(|| self.engine.watch(&self.key));
        loop {
            let now = Moment::now();
            let pause = self.engine.event(&self.key, |lane, effects| {
                lane.pause(&self.wakeup, again_at, now, effects)
            });
            let Some(pause) = pause else {
                return false;
            };
            if pause.at_once {
                return true;
            }
            let last_moment = pause
                .deadline
                .map(|deadline| deadline.before(LAST_ATTEMPT))
                .filter(|at| last_attempt && *at > asleep_since);
            let wake_at = last_moment.map_or(again_at, |at| at.min(again_at));
            // All three are cancel safe: hints and wakeups are kept for the next round.
            tokio::select! {
                biased;
                hint = hints.next() => {
                    let is_first = !std::mem::replace(&mut self.listens, true);
                    self.yields_to = self.yields_to.saturating_sub(1);
                    again_at = match hint {
                        Hint::Transferred { lease } if pause.place == Some(LeaseNumber::of(lease)) => return true,
                        Hint::Transferred { lease } => {
                            self.engine.event(&self.key, |lane, effects| {
                                lane.transferred_to(&self.wakeup, LeaseNumber::of(lease), effects);
                            });
                            again_at
                        }
                        // The hint is for another process, which may have stopped waiting.
                        _ if self.yields_to > 0 => again_at.min(Moment::now() + jittered(POLITE_AGAIN)),
                        _ => {
                            let spread = self.queued.map_or(Duration::ZERO, spread);
                            // A timer is late by up to 1 ms. Clients outside the queue attempt at once.
                            if is_first || spread.is_zero() {
                                return true;
                            }
                            again_at.min(Moment::now() + spread)
                        }
                    };
                }
                () = sleep_until(wake_at.into()) => return true,
                () = self.wakeup.notified() => {}
            }
        }
    }

    /// Returns when to retry without a hint: at the expiry of the holder, or after the backstop.
    fn next_attempt(&mut self, seen: &Seen, now: Moment) -> Moment {
        match seen {
            Seen::Busy(until) => {
                self.backoff = FIRST_BACKOFF;
                let expired = *until + Duration::from_millis(1);
                let refresh = match (self.queued, self.poll_after) {
                    (None, _) => BACKSTOP,
                    (Some(_), Some((after, since))) => {
                        after.max(now.since(since) / POLL_PART).min(POLL)
                    }
                    (Some(_), None) if !self.listens => POLL,
                    (Some(_), None) => REFRESH,
                };
                expired.min(now + jittered(refresh))
            }
            Seen::Nothing | Seen::Trouble(_) => {
                let pause = self.backoff;
                self.backoff = (pause * 2).min(BACKSTOP);
                now + jittered(pause)
            }
        }
    }
}

/// Returns when a process in a queue of `queued` attempts after a hint that all of them receive. One attempt
/// serves the first in the queue, so most others can wait for their turn.
fn spread(queued: u32) -> Duration {
    if queued <= AT_ONCE {
        return Duration::ZERO;
    }
    up_to(Duration::from_millis(queued.into()))
        .saturating_sub(Duration::from_millis(AT_ONCE.into()))
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
        self.engine.event(&self.key, |lane, effects| {
            lane.abandon(&self.wakeup, self.home, &error, now, effects);
        });
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
