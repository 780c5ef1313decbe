//! The way of a lease back to the backend: the events of the releaser.

use super::state::{Lane, Phase, Returning, Yielded};
use super::tenure::Tenure;
use crate::lock::clock::{Moment, Span};
use crate::lock::effect::{Effects, Outgoing, Work};
use crate::lock::lease::LeaseNumber;
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// What the releaser sends for a lane.
#[derive(Debug)]
pub(in crate::lock) enum Order {
    Release(Outgoing),
    /// The hand-off budget has ended with waiters here: release it only if others wait.
    ReleaseOrKeep(Outgoing, Span),
}

/// The terms under which the backend kept a lease.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct Kept {
    pub(in crate::lock) counter: u64,
    pub(in crate::lock) ttl: Span,
    pub(in crate::lock) sent_at: Moment,
    /// The runtime of the task that sent the command.
    pub(in crate::lock) home: RuntimeId,
}

impl Lane {
    /// The releaser comes for the lease; its command ends by `due`. `None` if the lease was taken back, or
    /// a renewal of it is in flight.
    pub(in crate::lock) fn take_return(
        &mut self,
        home: RuntimeId,
        now: Moment,
        due: Moment,
    ) -> Option<Order> {
        let first = self.queue.values().next().map(|first| first.claim);
        let Phase::Returning(returning) = &mut self.phase else {
            return None;
        };
        if returning.sent || returning.lease.is_in_flight() {
            return None;
        }
        returning.sent = true;
        returning.due = due;
        let lease = &returning.lease;
        let outgoing = returning.outgoing(now);
        let keep = first.is_some_and(|first| {
            lease.is_renewed_for(first.terms, now) && !first.deadline.has_passed(now)
        });
        let ttl = Span::new(lease.ttl());
        self.move_to(home);
        Some(if keep {
            Order::ReleaseOrKeep(outgoing, ttl)
        } else {
            Order::Release(outgoing)
        })
    }

    fn returns(&mut self, number: LeaseNumber) -> Option<&mut Returning> {
        match &mut self.phase {
            Phase::Returning(returning) if returning.sent && returning.lease.number() == number => {
                Some(returning)
            }
            _ => None,
        }
    }

    /// Returns `true` if the lease that is being returned has not expired yet.
    pub(in crate::lock) fn returns_in_time(&mut self, number: LeaseNumber, now: Moment) -> bool {
        self.returns(number)
            .is_some_and(|returning| now < returning.lease.valid_until())
    }

    /// The backend has the lease, or its reply failed: the next in the queue contends.
    pub(in crate::lock) fn returned(
        &mut self,
        number: LeaseNumber,
        outcome: Result<(), Error>,
        yielded: Yielded,
        now: Moment,
        effects: &mut Effects,
    ) {
        if let Some(returning) = self.returns(number) {
            let report = returning.report.take();
            effects.report(report, outcome);
            self.contend_or_idle(yielded, now, effects);
        }
    }

    /// The backend kept the lease, since no other process wants it: it goes on here under a fresh counter,
    /// or is released if nobody here wants it any more.
    pub(in crate::lock) fn kept(
        &mut self,
        key: &LockKey,
        number: LeaseNumber,
        kept: Kept,
        now: Moment,
        effects: &mut Effects,
    ) {
        let Kept {
            counter,
            ttl,
            sent_at,
            home,
        } = kept;
        match self.returns(number) {
            // The release that was sent beside it frees the key, and its reply is still to come.
            Some(returning) if returning.sent_again => return,
            Some(_) => {}
            // The lane went on without it.
            None => {
                let lease = number;
                effects.work.push(Work::Resolve { lease, ttl, home });
                return;
            }
        }
        let Phase::Returning(returning) = std::mem::take(&mut self.phase) else {
            unreachable!("BUG: the lease was just found");
        };
        let Returning {
            mut lease, report, ..
        } = returning;
        lease.keep(counter, sent_at, ttl.get());
        match self.first(now, effects) {
            Some(first) if lease.is_renewed_for(first.terms, now) => {
                effects.report(report, Ok(()));
                self.hand_to_first(now, effects, |claim| Tenure::begin(key, lease, claim, now));
            }
            _ => self.surrender(lease, report, home, now, effects),
        }
    }

    /// The lease must have expired before anybody returned it: the task died with its runtime, or does not
    /// run.
    pub(super) fn forget_return(&mut self, now: Moment, effects: &mut Effects) {
        if let Phase::Returning(returning) = &mut self.phase {
            let report = returning.report.take();
            effects.report(report, Err(Error::new(ErrorKind::Unavailable)));
            self.contend_or_idle(Yielded::ToNobody, now, effects);
        }
    }

    /// As [`forget_return`](Self::forget_return), where the lease must have expired.
    pub(in crate::lock) fn forget_if_expired(&mut self, now: Moment, effects: &mut Effects) {
        if let Phase::Returning(returning) = &self.phase
            && now >= returning.forget_at
        {
            self.forget_return(now, effects);
        }
    }

    /// The lease may be returned now, unless the next in the queue can have it.
    pub(super) fn resume_return(&mut self, key: &LockKey, now: Moment, effects: &mut Effects) {
        let next = self.first(now, effects);
        let Phase::Returning(returning) = std::mem::take(&mut self.phase) else {
            unreachable!("BUG: only what is returned resumes");
        };
        let Some(home) = self.home else {
            unreachable!("BUG: a lease was returned from a runtime");
        };
        let Returning { lease, report, .. } = returning;
        if next.is_some_and(|next| lease.may_pass_to(next.terms, now)) {
            effects.report(report, Ok(()));
            self.hand_to_first(now, effects, |claim| {
                Tenure::handed_on(key, lease, claim, now)
            });
        } else {
            self.surrender(lease, report, home, now, effects);
        }
    }

    /// Somebody waits for a release of which nothing was heard: it is sent from `home`, too. A release
    /// may be sent twice.
    pub(super) fn send_return_again(
        &mut self,
        home: RuntimeId,
        now: Moment,
        due: Moment,
        effects: &mut Effects,
    ) {
        self.home = Some(home);
        let Phase::Returning(returning) = &mut self.phase else {
            unreachable!("BUG: only what is returned is sent again");
        };
        returning.due = due;
        if returning.sent {
            returning.sent_again = true;
            let outgoing = returning.outgoing(now);
            effects.work.push(Work::ReturnAgain(outgoing, home));
        } else {
            effects.work.push(Work::Return(home));
        }
    }

    /// Drops the claim that a renewal is in flight: the task that sent it does not run.
    pub(super) fn give_up_renewal(&mut self, now: Moment) {
        if let Phase::Returning(Returning { lease, .. }) = &mut self.phase {
            lease.give_up_renewal(now);
        }
    }
}

impl Returning {
    pub(super) fn outgoing(&self, now: Moment) -> Outgoing {
        Outgoing {
            lease: self.lease.number(),
            ttl: Span::new(self.lease.longest(now)),
        }
    }
}
