//! The start and the end of an acquire loop.

pub(crate) mod attempt;
pub(super) mod attempting;

use std::sync::Arc;

use tokio::sync::Notify;

use super::{
    Contender, Contending, Effects, First, Lane, LastReply, Phase, Waiter, Wakeup, Work, YIELDING,
};
use crate::lock::lease::{LeaseNumber, ReleasedTo, Ticket};
use crate::{Error, ErrorKind};
use attempt::unanswered;
use attempting::PlaceChange;

impl Lane {
    /// Begins to contend by an acquire loop.
    pub(super) fn contend(
        &mut self,
        seen: LastReply,
        released_to: ReleasedTo,
        effects: &mut Effects,
    ) {
        let wakeup = Arc::new(Notify::new());
        let others_wait = match released_to {
            ReleasedTo::Queue { .. } => true,
            ReleasedTo::WithoutQueue => false,
            ReleasedTo::Nobody => matches!(seen, LastReply::Busy(_)),
        };
        let yields_until = match (&self.phase, released_to) {
            (Phase::Yielding { until }, _) => Some(*until),
            (Phase::Contending(contending), ReleasedTo::Nobody) => contending.yields_until,
            (_, ReleasedTo::Queue { .. }) => Some(effects.now + YIELDING),
            _ => None,
        };
        self.phase = Phase::Contending(Contending {
            contender: Contender::Loop(Arc::clone(&wakeup)),
            attempt: None,
            seen,
            others_wait,
            yields_until,
            place: released_to.place(),
            suspect: false,
        });
        effects.work.push(Work::Contend(wakeup, released_to));
    }

    /// Begins to contend for the next waiter, or becomes idle. The lane holds no lease any more.
    pub(super) fn contend_or_idle(&mut self, released_to: ReleasedTo, effects: &mut Effects) {
        match self.first(effects) {
            None => {
                if let Some(place) = released_to.place() {
                    effects.leave(place.lease);
                }
                self.phase = match released_to {
                    ReleasedTo::Queue { .. } => Phase::Yielding {
                        until: effects.now + YIELDING,
                    },
                    ReleasedTo::Nobody | ReleasedTo::WithoutQueue => Phase::Idle,
                };
            }
            Some(claim) => {
                let released_to = released_to.for_mode(claim.terms.mode);
                self.contend(LastReply::Busy(effects.now), released_to, effects);
            }
        }
    }

    /// Wakes the acquire loop, if one contends. A first attempt waits for its reply.
    pub(super) fn wake_loop(&self) {
        if let Phase::Contending(Contending {
            contender: Contender::Loop(wakeup),
            ..
        }) = &self.phase
        {
            wakeup.notify_one();
        }
    }

    /// Returns the state of the contest, for the task that contends.
    pub(super) fn contending(&mut self) -> &mut Contending {
        match &mut self.phase {
            Phase::Contending(contending) => contending,
            _ => unreachable!("BUG: only its task ends a contest"),
        }
    }

    /// Returns `true` if the attempt in flight is the one under this lease, and no other task has replaced it.
    pub(crate) fn awaits_reply(&self, lease: LeaseNumber) -> bool {
        match &self.phase {
            Phase::Contending(contending) => contending.attempt.is_some_and(|(it, _)| it == lease),
            _ => false,
        }
    }

    /// Applies the drop of a first attempt with its runtime, which has ended, and contends by a loop. Returns `false` if
    /// one has replaced it before.
    pub(crate) fn abandon(&mut self, lease: LeaseNumber, effects: &mut Effects) -> bool {
        let awaits_reply = self.awaits_reply(lease);
        if awaits_reply {
            self.replace_task(effects);
        }
        awaits_reply
    }

    /// Applies the drop of an acquire loop with the home, which has ended: rejects all waiters.
    pub(crate) fn abandon_all(&mut self, own: &Wakeup, error: &Error, effects: &mut Effects) {
        // After a panic of code of the program in its last event, the next task may contend already.
        match &self.phase {
            Phase::Contending(Contending {
                contender: Contender::Loop(wakeup),
                ..
            }) if Arc::ptr_eq(wakeup, own) => {}
            _ => return,
        }
        self.reject_if(effects, |_, _| error.clone(), |_| true);
        self.leave_backend(effects);
        self.stop_contending(effects.now);
    }

    /// Replaces a first attempt that does not run by an acquire loop, if a waiter is left.
    pub(super) fn replace_task(&mut self, effects: &mut Effects) {
        self.leave_backend(effects);
        if self.first(effects).is_none() {
            return self.stop_contending(effects.now);
        }
        let seen = std::mem::replace(&mut self.contending().seen, LastReply::Nothing);
        if let Some(waiter) = self.queue.attempting.take() {
            self.begin_to_wait(waiter, effects.now);
        }
        self.contend(seen, ReleasedTo::Nobody, effects);
    }

    /// Begins to contend in an idle lane, by the first attempt of `waiter` under `lease`.
    pub(crate) fn attempt_first(&mut self, waiter: Arc<Waiter>, lease: LeaseNumber, first: First) {
        let yields_until = match self.phase {
            Phase::Yielding { until } => Some(until),
            _ => None,
        };
        let ttl = waiter.claim.terms.ttl;
        self.queue.attempting = Some(waiter);
        self.phase = Phase::Contending(Contending {
            contender: Contender::FirstAttempt(first),
            attempt: Some((lease, ttl)),
            seen: LastReply::Nothing,
            others_wait: false,
            yields_until,
            place: None,
            suspect: false,
        });
    }

    /// Applies a rejected first attempt, and continues by an acquire loop if a waiter is left. `ticket`: of the acquire
    /// that made it. `may_wait` returns `false` if too many wait.
    pub(crate) fn rejected_first(
        &mut self,
        (ticket, sent): (Ticket, LeaseNumber),
        seen: LastReply,
        effects: &mut Effects,
        may_wait: impl FnOnce() -> bool,
    ) {
        if let Some(waiter) = self.queue.remove(ticket) {
            if waiter.claim.deadline.is_one_attempt() {
                effects.reject(waiter, seen.error(effects.now));
            } else if may_wait() {
                self.begin_to_wait(waiter, effects.now);
            } else {
                let error = seen.error(effects.now).into_kind(ErrorKind::TooManyWaiters);
                effects.reject(waiter, error);
            }
        }
        self.rejected(sent, seen, PlaceChange::Out, effects);
        self.replace_task(effects);
    }

    /// Leaves the queue of the backend. The lease of an attempt in flight is released: its task may yet receive the grant.
    pub(super) fn leave_backend(&mut self, effects: &mut Effects) {
        let Phase::Contending(contending) = &mut self.phase else {
            return;
        };
        match (contending.attempt.take(), contending.place.take()) {
            (Some((lease, ttl)), _) => {
                let ttl = unanswered(ttl);
                effects.work.push(Work::ReleaseUnknown { lease, ttl });
            }
            (None, Some(place)) => effects.leave(place.lease),
            (None, None) => {}
        }
    }
}
