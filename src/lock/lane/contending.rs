//! The start and the end of an acquire loop.

pub(in crate::lock) mod attempt;
pub(super) mod attempting;
pub(super) mod looking;
pub(super) mod pace;

use std::sync::Arc;

use tokio::sync::Notify;

use super::effect::{Effects, Work};
use super::holding::tenure::Tenure;
use super::queue::waiter::Waiter;
use super::state::{Contender, Contending, First, Lane, Phase, Seen, YIELDING};
use crate::lock::clock::Moment;
use crate::lock::lease::claim::{Claim, Ticket};
use crate::lock::lease::grant::Grant;
use crate::lock::lease::yielded::Yielded;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::observe::Via;
use crate::{Error, ErrorKind, LockKey};
use attempt::unanswered;
use attempting::{Place, Refused};

impl Contending {
    /// Wakes a loop. A first attempt waits for its reply.
    pub(super) fn wake(&self) {
        if let Contender::Loop(wakeup) = &self.contender {
            wakeup.notify_one();
        }
    }
}

impl Lane {
    /// Begins to contend by an acquire loop.
    pub(super) fn contend(
        &mut self,
        seen: Seen,
        yielded: Yielded,
        now: Moment,
        effects: &mut Effects,
    ) {
        let wakeup = Arc::new(Notify::new());
        let others_wait = match yielded {
            Yielded::ToQueue { .. } => true,
            Yielded::WithoutQueue => false,
            Yielded::ToNobody => matches!(seen, Seen::Busy(_)),
        };
        let yields_until = match (&self.phase, yielded) {
            (Phase::Yielding { until }, _) => Some(*until),
            (Phase::Contending(contending), Yielded::ToNobody) => contending.yields_until,
            (_, Yielded::ToQueue { .. }) => Some(now + YIELDING),
            _ => None,
        };
        self.phase = Phase::Contending(Contending {
            contender: Contender::Loop(Arc::clone(&wakeup)),
            attempt: None,
            first: None,
            seen,
            others_wait,
            yields_until,
            place: yielded.place(),
            suspect: false,
        });
        effects.work.push(Work::Contend { wakeup, yielded });
    }

    /// Begins to contend for the next waiter, or becomes idle. The lane holds no lease any more.
    pub(super) fn contend_or_idle(&mut self, yielded: Yielded, now: Moment, effects: &mut Effects) {
        match self.first(now, effects) {
            None => {
                if let Some(place) = yielded.place() {
                    effects.leave(place.lease);
                }
                self.phase = match yielded {
                    Yielded::ToQueue { .. } => Phase::Yielding {
                        until: now + YIELDING,
                    },
                    Yielded::ToNobody | Yielded::WithoutQueue => Phase::Idle,
                };
            }
            Some(claim) => {
                let yielded = yielded.for_mode(claim.terms.mode);
                self.contend(Seen::Busy(now), yielded, now, effects);
            }
        }
    }

    /// Returns the state of the contest if this task contends for the lane.
    pub(in crate::lock) fn driven_by(&mut self, own: &Contender) -> Option<&mut Contending> {
        match &mut self.phase {
            Phase::Contending(contending) if contending.contender == *own => Some(contending),
            _ => None,
        }
    }

    /// Rejects the waiters that `which` selects, at a shutdown.
    pub(in crate::lock) fn dismiss(
        &mut self,
        error: &Error,
        effects: &mut Effects,
        which: impl Fn(&Claim) -> bool,
    ) {
        self.reject_if(effects, |_| error.clone(), which);
        if let Phase::Contending(contending) = &self.phase {
            contending.wake();
        }
    }

    /// Applies the drop of the task with its runtime, which has ended, and contends by another one. Returns `false` if
    /// another task has replaced this one.
    pub(in crate::lock) fn abandon(
        &mut self,
        own: &Contender,
        now: Moment,
        effects: &mut Effects,
    ) -> bool {
        if self.driven_by(own).is_none() {
            return false;
        }
        self.replace_task(now, effects);
        true
    }

    /// Applies the drop of an acquire loop with the home, which has ended: rejects all waiters.
    pub(in crate::lock) fn abandon_all(
        &mut self,
        own: &Contender,
        error: &Error,
        now: Moment,
        effects: &mut Effects,
    ) {
        if self.driven_by(own).is_none() {
            return;
        }
        self.reject_if(effects, |_| error.clone(), |_| true);
        self.leave_backend(effects);
        self.stop_contending(now);
    }

    /// Replaces a first attempt that does not run by an acquire loop, if a waiter is left.
    pub(super) fn replace_task(&mut self, now: Moment, effects: &mut Effects) {
        self.leave_backend(effects);
        if self.first(now, effects).is_none() {
            return self.stop_contending(now);
        }
        let Phase::Contending(contending) = &mut self.phase else {
            unreachable!("BUG: only a task that contends is replaced");
        };
        let seen = std::mem::replace(&mut contending.seen, Seen::Nothing);
        if self.queue.is_attempting()
            && let Some(waiter) = self.queue.pop_first()
        {
            self.begin_to_wait(waiter, now);
        }
        self.contend(seen, Yielded::ToNobody, now, effects);
    }

    /// Applies an attempt in an idle lane that a backend in this process granted at once.
    pub(in crate::lock) fn granted_at_once(
        &mut self,
        key: &LockKey,
        claim: &Claim,
        lease: Lease,
        now: Moment,
    ) -> Arc<Grant> {
        self.hold(Tenure::begin(key, lease, Via::Backend, claim, now))
    }

    /// Begins to contend in an idle lane, by the first attempt of `waiter` under `lease`.
    pub(in crate::lock) fn attempt_first(
        &mut self,
        waiter: Arc<Waiter>,
        lease: LeaseNumber,
        first: First,
    ) {
        let yields_until = match self.phase {
            Phase::Yielding { until } => Some(until),
            _ => None,
        };
        let ttl = waiter.claim.terms.ttl;
        self.queue.attempt(waiter);
        self.phase = Phase::Contending(Contending {
            contender: Contender::FirstAttempt(lease),
            attempt: Some((lease, ttl)),
            first: Some(first),
            seen: Seen::Nothing,
            others_wait: false,
            yields_until,
            place: None,
            suspect: false,
        });
    }

    /// Applies a rejected first attempt, and continues by an acquire loop if a waiter is left. `ticket`: of the acquire
    /// that made it. `may_wait` returns `false` if too many wait.
    pub(in crate::lock) fn refused_first(
        &mut self,
        (ticket, sent): (Ticket, LeaseNumber),
        seen: Seen,
        now: Moment,
        effects: &mut Effects,
        may_wait: impl FnOnce() -> bool,
    ) {
        let own = Contender::FirstAttempt(sent);
        if self.driven_by(&own).is_none() {
            return;
        }
        if let Some(waiter) = self.queue.remove(ticket) {
            if waiter.claim.deadline.is_one_attempt() {
                effects.reject(waiter, seen.error(now));
            } else if may_wait() {
                self.begin_to_wait(waiter, now);
            } else {
                let error = seen.error(now).into_kind(ErrorKind::TooManyWaiters);
                effects.reject(waiter, error);
            }
        }
        let place = Place::Out;
        self.refused(&own, Refused { sent, seen, place }, now, effects);
        self.replace_task(now, effects);
    }

    /// Leaves the queue of the backend. The lease of an attempt in flight is released: its task may yet receive the grant.
    pub(super) fn leave_backend(&mut self, effects: &mut Effects) {
        let Phase::Contending(contending) = &mut self.phase else {
            return;
        };
        match (contending.attempt.take(), contending.place.take()) {
            (Some((lease, ttl)), _) => {
                let ttl = unanswered(ttl);
                effects.work.push(Work::Resolve { lease, ttl });
            }
            (None, Some(place)) => effects.leave(place.lease),
            (None, None) => {}
        }
    }
}
