//! The start and the end of an acquire loop.

pub(in crate::lock) mod attempt;
pub(super) mod attempting;
pub(in crate::lock) mod in_place;
pub(super) mod looking;
pub(super) mod pace;

use std::sync::Arc;

use tokio::sync::Notify;

use super::effect::{Effects, Wakeup, Work};
use super::holding::tenure::Tenure;
use super::queue::waiters::Waiter;
use super::state::{Contending, First, Lane, Phase, Seen, YIELDING};
use crate::lock::clock::{Moment, Span};
use crate::lock::lease::claim::{Claim, Ticket};
use crate::lock::lease::grant::Grant;
use crate::lock::lease::place::QueuePlace;
use crate::lock::lease::yielded::Yielded;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::observe::Via;
use crate::{Error, LockKey};
use attempt::unanswered;
use attempting::{Place, Refused};

impl Contending {
    pub(super) fn wake(&self) {
        self.wakeup.notify_one();
    }

    fn is_driven_by(&self, own: &Wakeup) -> bool {
        Arc::ptr_eq(&self.wakeup, own)
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
            wakeup: Arc::clone(&wakeup),
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

    /// Returns `true` if this task contends for the lane.
    pub(in crate::lock) fn is_driven_by(&self, wakeup: &Wakeup) -> bool {
        matches!(&self.phase, Phase::Contending(contending) if contending.is_driven_by(wakeup))
    }

    pub(super) fn driven_by(&mut self, wakeup: &Wakeup) -> Option<&mut Contending> {
        match &mut self.phase {
            Phase::Contending(contending) if contending.is_driven_by(wakeup) => Some(contending),
            _ => None,
        }
    }

    /// Rejects the waiters that `which` selects, at a shutdown. Without waiters, the pause of the lane ends.
    pub(in crate::lock) fn dismiss(
        &mut self,
        error: &Error,
        effects: &mut Effects,
        which: impl Fn(&Claim) -> bool,
    ) {
        self.reject_if(effects, |_| error.clone(), which);
        match &mut self.phase {
            Phase::Contending(contending) => {
                contending.yields_until.take_if(|_| self.queue.is_empty());
                contending.wake();
            }
            Phase::Yielding { .. } => self.phase = Phase::Idle,
            Phase::Idle | Phase::Held(_) | Phase::Returning(_) => {}
        }
    }

    /// Applies the drop of the task with its runtime, which has ended, and contends by another one. Returns `false` if
    /// another task has replaced this one.
    pub(in crate::lock) fn abandon(
        &mut self,
        wakeup: &Wakeup,
        now: Moment,
        effects: &mut Effects,
    ) -> bool {
        if self.driven_by(wakeup).is_none() {
            return false;
        }
        self.replace_task(now, effects);
        true
    }

    /// Applies the drop of an acquire loop with the home, which has ended: rejects all waiters.
    pub(in crate::lock) fn abandon_all(
        &mut self,
        wakeup: &Wakeup,
        error: &Error,
        now: Moment,
        effects: &mut Effects,
    ) {
        if self.driven_by(wakeup).is_none() {
            return;
        }
        self.reject_if(effects, |_| error.clone(), |_| true);
        self.replace_task(now, effects);
    }

    /// Replaces a task that does not run by an acquire loop, if a waiter is left.
    pub(super) fn replace_task(&mut self, now: Moment, effects: &mut Effects) {
        let place = self.end_task(effects);
        if self.first(now, effects).is_none() {
            if let Some(place) = place {
                effects.leave(place.lease);
            }
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
        self.contend(seen, Yielded::behind(place), now, effects);
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

    /// Begins to contend in an idle lane, by the first attempt of `waiter`.
    pub(in crate::lock) fn attempt_first(
        &mut self,
        waiter: Waiter,
        attempt: (LeaseNumber, Span),
        first: First,
    ) -> Wakeup {
        let yields_until = match self.phase {
            Phase::Yielding { until } => Some(until),
            _ => None,
        };
        let wakeup = Wakeup::default();
        self.queue.attempt(Box::new(waiter));
        self.phase = Phase::Contending(Contending {
            wakeup: Arc::clone(&wakeup),
            attempt: Some(attempt),
            first: Some(first),
            seen: Seen::Nothing,
            others_wait: false,
            yields_until,
            place: None,
            suspect: false,
        });
        wakeup
    }

    /// Returns `true` if a waiter is left for a first attempt that is about to be sent. Ends the contest otherwise.
    pub(in crate::lock) fn keeps_first(&mut self, wakeup: &Wakeup, now: Moment) -> bool {
        // If another task has replaced this one, the reply is applied without the lane.
        let keeps = self.driven_by(wakeup).is_none() || !self.queue.is_empty();
        if !keeps {
            self.stop_contending(now);
        }
        keeps
    }

    /// Applies a rejected first attempt, and continues by an acquire loop if a waiter is left. `ticket`: of the acquire
    /// that made it. `keeps_waiting` returns the acquire if it may wait.
    pub(in crate::lock) fn refused_first(
        &mut self,
        wakeup: &Wakeup,
        (ticket, sent): (Ticket, LeaseNumber),
        seen: Seen,
        now: Moment,
        effects: &mut Effects,
        keeps_waiting: impl FnOnce(Waiter, &Seen, &mut Effects) -> Option<Waiter>,
    ) {
        if self.driven_by(wakeup).is_none() {
            return;
        }
        if let Some(waiter) = self.queue.remove(ticket) {
            if waiter.claim.deadline.is_one_attempt() {
                effects.reject(waiter.reply, seen.error(now));
            } else if let Some(waiter) = keeps_waiting(*waiter, &seen, effects) {
                self.begin_to_wait(Box::new(waiter), now);
            }
        }
        let place = Place::Out;
        self.refused(wakeup, Refused { sent, seen, place }, now, effects);
        self.replace_task(now, effects);
    }

    /// Ends a task that another one replaces. Returns the place in the queue of the backend, for the other one.
    ///
    /// If an attempt is in flight, its lease is released instead: the ended task may yet receive the grant.
    fn end_task(&mut self, effects: &mut Effects) -> Option<QueuePlace> {
        let Phase::Contending(contending) = &mut self.phase else {
            return None;
        };
        let place = contending.place.take();
        if let Some((lease, ttl)) = contending.attempt.take() {
            let ttl = unanswered(ttl);
            effects.work.push(Work::Resolve { lease, ttl });
            return None;
        }
        place
    }

    /// Leaves the queue of the backend.
    pub(super) fn leave_place(&mut self, effects: &mut Effects) {
        if let Phase::Contending(contending) = &mut self.phase
            && let Some(place) = contending.place.take()
        {
            effects.leave(place.lease);
        }
    }

    pub(super) fn is_suspect(&self) -> bool {
        matches!(&self.phase, Phase::Contending(contending) if contending.suspect)
    }

    pub(super) fn pass_suspicion_on(&self, lease: &mut Lease, now: Moment) {
        if self.is_suspect() {
            lease.mark_suspect(now);
        }
    }
}
