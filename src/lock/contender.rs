//! The one conversation that a lane has with the backend while nobody here holds the key.
//!
//! It starts inside the acquire that found the lane idle, so that an uncontended lock costs one
//! round trip and no task. It goes on as a task when that acquire has to wait, is dropped with its attempt
//! in flight, or is not polled while others wait: the attempt is then finished, and what it got goes to the
//! first in the queue or back to the backend. So a lane never has two attempts in flight, and none is
//! forgotten. Only a task that does not run any more, in a runtime that idles or blocks, is replaced with
//! its attempt in flight; what that one gets is released.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::attempt::{Attempt, InFlight, Inline, InlineAttempt, Replied};
use super::claim::Terms;
use super::clock::{Moment, Span};
use super::effect::Wakeup;
use super::engine::Engine;
use super::lane::{Seen, TakeOver, Waiter};
use super::lease::{Lease, LeaseNumber};
use super::timeout::by;
use crate::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Hints, Immediate as _, LeaseId,
};
use crate::jitter::jittered;
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// How long a lost notification can delay a waiter.
const BACKSTOP: Duration = Duration::from_secs(1);

/// The pause after a failed attempt, doubled each time up to [`BACKSTOP`].
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// The last attempt for a waiter is made this much ahead of its deadline, so that the reply is there in
/// time.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);

/// How long other processes have to take a key that this one released for them, however far away they
/// are.
const POLITE: Duration = Duration::from_millis(5);

/// How long they have when it was released by another one that still is not the last of them.
const POLITE_AGAIN: Duration = Duration::from_millis(2);

/// The outcome of an attempt.
pub(super) enum Outcome {
    Granted(Lease),
    /// Another process has it, or the backend has a passing trouble: worth another attempt.
    NotYet(Seen),
    /// No attempt will ever succeed.
    Never(Error),
}

/// Sends an attempt.
pub(super) fn send(engine: &Arc<Engine>, key: &LockKey, lease: LeaseId, terms: Terms) -> Attempt {
    let request = AcquireRequest::new(key.clone(), lease, terms.ttl.get());
    let sent_at = Moment::now();
    Attempt {
        lease,
        terms,
        sent_at,
        reply: Arc::clone(&engine.backend).try_acquire(request),
    }
}

/// Makes an attempt where the backend can reply without waiting. `now` is a moment before this call; the
/// lease is counted from it.
pub(super) fn attempt_now(
    engine: &Engine,
    key: &LockKey,
    lease: LeaseId,
    terms: Terms,
    now: Moment,
) -> Option<Replied> {
    let immediate = engine.backend.immediate()?;
    let request = AcquireRequest::new(key.clone(), lease, terms.ttl.get());
    Some(Replied {
        lease,
        terms,
        sent_at: now,
        now,
        outcome: immediate.try_acquire(&request, now.into()),
    })
}

/// Returns what a reply means, and whether the lease has to be released since its fate is unknown.
pub(super) fn judge(engine: &Engine, replied: Replied) -> (Outcome, Option<(LeaseNumber, Span)>) {
    let Replied {
        lease,
        terms,
        sent_at,
        now,
        outcome,
    } = replied;
    let number = LeaseNumber::of(lease);
    let unresolved = Some((number, terms.ttl));
    match outcome {
        Ok(Acquired::Granted { counter }) => {
            let per_counter = engine.backend.tokens_per_counter();
            let granted = Lease::new(number, counter, per_counter, terms, sent_at);
            if now < granted.valid_until() {
                return (Outcome::Granted(granted), None);
            }
            // The reply took as long as the lease: another owner may hold the key by now.
            (Outcome::NotYet(Seen::Nothing), unresolved)
        }
        Ok(Acquired::Busy { ttl }) => (Outcome::NotYet(Seen::Busy(now + ttl)), None),
        Err(error) => {
            let unresolved = unresolved.filter(|_| error.may_have_taken_effect());
            let outcome = match error.kind() {
                BackendErrorKind::Unavailable => Outcome::NotYet(Seen::Trouble(error)),
                BackendErrorKind::Misconfigured | BackendErrorKind::Conflict => {
                    Outcome::Never(error.into())
                }
            };
            (outcome, unresolved)
        }
    }
}

/// Contends for a key as a task, until an acquire of this process has it or none wants it.
///
/// Dropped with its runtime, or unstarted where that has ended, it leaves the lane to waiters in other
/// runtimes.
pub(super) struct AcquireLoop {
    engine: Arc<Engine>,
    key: LockKey,
    home: RuntimeId,
    wakeup: Wakeup,
    in_flight: Option<Attempt>,
    /// The attempt in flight was sent by an acquire.
    took_over: bool,
    hints: Option<Hints>,
    /// So many hints are for others.
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
            yields_to: 0,
            backoff: FIRST_BACKOFF,
            over: false,
        }
    }

    /// Goes on with an attempt that is in flight.
    pub(super) fn with_attempt(mut self, attempt: Attempt) -> Self {
        self.in_flight = Some(attempt);
        self.took_over = true;
        self
    }

    /// Starts the task. So many other processes, which were just notified that the key is free, are served
    /// first: the first to hear of a release mostly gets the key, and it is mostly the same.
    pub(super) fn spawn(mut self, yields_to: u32) {
        self.yields_to = yields_to;
        if let Some(home) = self.engine.home(self.home) {
            self.home = home.id;
            home.runtime.spawn(self.run());
        }
    }

    /// Try, subscribe, try again, wait: a release between the first attempt and the subscription is seen
    /// by the second attempt, which the first hint of a new subscription brings about.
    async fn run(mut self) {
        self.contend().await;
        self.over = true;
    }

    async fn contend(&mut self) {
        if self.yields_to > 0 {
            // The first hint reports the subscription.
            self.yields_to = self.yields_to.saturating_add(1);
            let soon = Moment::now() + jittered(POLITE);
            if !self.pause(soon, false).await {
                return;
            }
        }
        loop {
            let Some(replied) = self.attempt().await else {
                return;
            };
            let number = LeaseNumber::of(replied.lease);
            let now = replied.now;
            let (outcome, unresolved) = judge(&self.engine, replied);
            if let Some((lease, ttl)) = unresolved {
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
                    // A backend in trouble is asked once per backoff step, whatever deadlines pass.
                    let last_attempt = matches!(seen, Seen::Busy(_));
                    let again_at = self.next_attempt(&seen, now);
                    self.engine.event(&self.key, |lane, effects| {
                        lane.refused(&self.wakeup, number, seen, now, effects);
                    });
                    if !self.pause(again_at, last_attempt).await {
                        return;
                    }
                }
            }
        }
    }

    /// Makes an attempt, or goes on with the one in flight. `None` if nobody waits any more.
    ///
    /// # Cancel safety
    ///
    /// Dropped only with the runtime.
    async fn attempt(&mut self) -> Option<Replied> {
        if self.in_flight.is_none() {
            let lease = self.engine.new_lease_id();
            let now = Moment::now();
            let due = self.engine.stuck_at(now);
            let number = LeaseNumber::of(lease);
            let terms = self.engine.event(&self.key, |lane, effects| {
                lane.begin_attempt(&self.wakeup, number, now, due, effects)
            })?;
            if let Some(replied) = attempt_now(&self.engine, &self.key, lease, terms, now) {
                return Some(replied);
            }
            self.in_flight = Some(send(&self.engine, &self.key, lease, terms));
        }
        let Some(mut attempt) = self.in_flight.take() else {
            unreachable!("BUG: an attempt was just sent");
        };
        if !self.took_over {
            return Some(poll_fn(|cx| attempt.poll_reply(cx)).await);
        }
        // It may depend on a runtime that does not run.
        self.took_over = false;
        let due = self.engine.stuck_at(Moment::now());
        let replied = by(due, poll_fn(|cx| attempt.poll_reply(cx))).await;
        Some(replied.unwrap_or_else(|| self.leave_behind(attempt)))
    }

    /// An attempt without a reply is of unknown fate. What its reply may still bring is released.
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
                if !matches!(replied.outcome, Ok(Acquired::Busy { .. })) {
                    engine.resolve(&key, lease, ttl, id);
                }
            });
        }
        unknown
    }

    /// Waits for a hint, the time, or the last moment of the first in the queue. Returns `false` when
    /// nobody is left in it; then the lane is idle.
    async fn pause(&mut self, mut again_at: Moment, last_attempt: bool) -> bool {
        let asleep_since = Moment::now();
        let hints = (self.hints).get_or_insert_with(|| self.engine.backend.watch(&self.key));
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
            // All three may be dropped at any time: hints and wakeups are kept for the next round.
            tokio::select! {
                biased;
                () = hints.next() => {
                    self.yields_to = self.yields_to.saturating_sub(1);
                    if self.yields_to == 0 {
                        return true;
                    }
                    // Unless those it is for are not there any more.
                    again_at = again_at.min(Moment::now() + jittered(POLITE_AGAIN));
                }
                () = sleep_until(wake_at.into()) => return true,
                () = self.wakeup.notified() => {}
            }
        }
    }

    /// Returns when to try again if nothing happens: when the holder's lease has ended, or after the backstop.
    fn next_attempt(&mut self, seen: &Seen, now: Moment) -> Moment {
        match seen {
            Seen::Busy(until) => {
                self.backoff = FIRST_BACKOFF;
                let expired = *until + Duration::from_millis(1);
                expired.min(now + jittered(BACKSTOP))
            }
            Seen::Nothing | Seen::Trouble(_) => {
                let pause = self.backoff;
                self.backoff = (pause * 2).min(BACKSTOP);
                now + jittered(pause)
            }
        }
    }
}

impl Drop for AcquireLoop {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // Only the end of its runtime drops it early.
        self.engine.homes.end(self.home);
        let error = Error::new(ErrorKind::Unavailable).with_source(RuntimeEnded);
        let now = Moment::now();
        self.engine.event(&self.key, |lane, effects| {
            lane.abandon(&self.wakeup, self.home, &error, now, effects);
        });
    }
}

/// The runtime that drove the attempt may not run any more.
#[derive(Debug, thiserror::Error)]
#[error("no reply to the attempt of an acquire that is not polled")]
struct NoReply;

/// The task that contended for the lock was dropped with its runtime.
#[derive(Debug, thiserror::Error)]
#[error("the runtime that waited for the lock was shut down")]
struct RuntimeEnded;

/// Finishes the attempt of an acquire that is not polled, in `home`. The acquire finds itself in the queue.
pub(super) fn take_over(
    engine: &Arc<Engine>,
    key: &LockKey,
    inline: &Arc<InlineAttempt>,
    home: RuntimeId,
) {
    // Otherwise it is being polled at this moment.
    let Some(mut state) = inline.unpolled() else {
        return;
    };
    let Inline::InFlight(_) = &*state else {
        return;
    };
    let (reply, answer) = oneshot::channel();
    let Inline::InFlight(in_flight) = std::mem::replace(&mut *state, Inline::TakenOver(answer))
    else {
        unreachable!("BUG: the attempt was just found in flight");
    };
    drop(state);
    let InFlight {
        attempt,
        claim,
        seat,
        waker,
    } = *in_flight;
    waker.wake();
    let waiter = Box::new(Waiter {
        claim,
        reply,
        _seat: seat,
    });
    let now = Moment::now();
    let take_over = TakeOver {
        in_flight: (LeaseNumber::of(attempt.lease), attempt.terms.ttl),
        waiter,
        home,
        now,
        due: engine.stuck_at(now),
    };
    let taken = engine.event(key, |lane, effects| {
        lane.take_over_inline(inline, take_over, effects)
    });
    match taken {
        Ok(wakeup) => AcquireLoop::new(engine, key, home, wakeup)
            .with_attempt(attempt)
            .spawn(0),
        Err(_waiter) => unreachable!("BUG: a lane keeps its inline attempt until it ends"),
    }
}

#[cfg(test)]
mod tests;
