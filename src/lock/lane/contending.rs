//! The events of the acquire that drives its own first attempt, and of the task that contends.

use std::sync::Arc;

use tokio::sync::Notify;

use super::state::{Contending, Driver, Elsewhere, Lane, Phase, Seen, TAKE_OVER, Waiter, Yielded};
use super::tenure::Tenure;
use crate::Error;
use crate::LockKey;
use crate::lock::attempt::InlineAttempt;
use crate::lock::claim::{Claim, Terms, Ticket};
use crate::lock::clock::{Moment, Span};
use crate::lock::effect::{Effects, Wakeup, Work};
use crate::lock::grant::Grant;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::task::RuntimeId;

/// An attempt that a task finishes for its acquire, which queues as `waiter`.
#[derive(Debug)]
pub(in crate::lock) struct TakeOver {
    pub(in crate::lock) in_flight: (LeaseNumber, Span),
    pub(in crate::lock) waiter: Box<Waiter>,
    /// The runtime of the task.
    pub(in crate::lock) home: RuntimeId,
    pub(in crate::lock) now: Moment,
    /// When the reply is there, or an error in its place.
    pub(in crate::lock) due: Moment,
}

/// How long a task that contends waits.
#[derive(Debug)]
pub(in crate::lock) struct Pause {
    /// The deadline of the first waiter.
    pub(in crate::lock) deadline: Option<Moment>,
    /// A waiter asks for an attempt now.
    pub(in crate::lock) at_once: bool,
}

impl Contending {
    pub(super) fn wake(&self) {
        if let Driver::Task { wakeup, .. } = &self.driver {
            wakeup.notify_one();
        }
    }

    fn is_driven_by(&self, own: &Wakeup) -> bool {
        matches!(&self.driver, Driver::Task { wakeup, .. } if Arc::ptr_eq(wakeup, own))
    }
}

impl Lane {
    // ---- the inline acquire -----------------------------------------------------------------

    /// The lane was idle: the acquire drives its first attempt.
    pub(in crate::lock) fn contend_inline(
        &mut self,
        attempt: &Arc<InlineAttempt>,
        claim: &Claim,
        now: Moment,
    ) {
        self.move_to(claim.home);
        self.phase = Phase::Contending(Contending {
            driver: Driver::Inline {
                attempt: Arc::clone(attempt),
                deadline: claim.deadline.moment(),
            },
            seen: Seen::Nothing,
            others_wait: false,
            suspect: false,
            due: now + TAKE_OVER,
        });
    }

    /// The first attempt succeeded. Waiters for a single attempt, now behind a holder, are rejected.
    pub(in crate::lock) fn granted_inline(
        &mut self,
        key: &LockKey,
        claim: Claim,
        mut lease: Lease,
        now: Moment,
        effects: &mut Effects,
    ) -> Arc<Grant> {
        self.pass_suspicion_on(&mut lease, now);
        self.move_to(claim.home);
        let tenure = Tenure::begin(key, lease, claim, now);
        let grant = self.hold(tenure);
        if !self.queue.is_empty() {
            self.grant_companions(claim.owner, &grant, now, effects);
            self.reject_if(now, effects, |claim| claim.deadline.is_one_attempt());
        }
        grant
    }

    /// The first attempt was refused: the acquire queues, and a task goes on contending.
    pub(in crate::lock) fn inline_queues(
        &mut self,
        waiter: Waiter,
        seen: Seen,
        now: Moment,
        effects: &mut Effects,
    ) {
        let home = waiter.claim.home;
        self.queue.insert(waiter.claim.ticket, Box::new(waiter));
        self.contend(seen, Yielded::ToNobody, home, now, effects);
    }

    /// The inline acquire leaves after its attempt, or with it in flight: a task finishes the attempt, and
    /// goes on for those who queue. Returns the wakeup of a task that the caller has to start.
    pub(in crate::lock) fn inline_leaves(
        &mut self,
        in_flight: Option<(LeaseNumber, Span)>,
        seen: Seen,
        home: RuntimeId,
        now: Moment,
        due: Moment,
        effects: &mut Effects,
    ) -> Option<Wakeup> {
        if in_flight.is_none() {
            if self.queue.is_empty() {
                self.phase = Phase::Idle;
            } else {
                self.contend(seen, Yielded::ToNobody, home, now, effects);
            }
            return None;
        }
        let suspect = self.is_suspect();
        let wakeup = self.contend_by_task(seen, Yielded::ToNobody, now);
        if let Phase::Contending(contending) = &mut self.phase {
            contending.suspect = suspect;
            contending.due = due + TAKE_OVER;
            contending.driver = Driver::Task {
                wakeup: Arc::clone(&wakeup),
                attempt: in_flight,
            };
        }
        self.move_to(home);
        Some(wakeup)
    }

    /// The inline acquire is not polled: it queues, and a task finishes its attempt. Gives the waiter back
    /// if the attempt is over.
    pub(in crate::lock) fn take_over_inline(
        &mut self,
        attempt: &Arc<InlineAttempt>,
        take_over: TakeOver,
        effects: &mut Effects,
    ) -> Result<Wakeup, Box<Waiter>> {
        let TakeOver {
            in_flight,
            waiter,
            home,
            now,
            due,
        } = take_over;
        match &self.phase {
            Phase::Contending(Contending {
                driver: Driver::Inline { attempt: own, .. },
                ..
            }) if Arc::ptr_eq(own, attempt) => {}
            _ => return Err(waiter),
        }
        self.queue.insert(waiter.claim.ticket, waiter);
        let wakeup = self.inline_leaves(Some(in_flight), Seen::Nothing, home, now, due, effects);
        let Some(wakeup) = wakeup else {
            unreachable!("BUG: an attempt in flight needs a task");
        };
        Ok(wakeup)
    }

    // ---- the task ---------------------------------------------------------------------------

    /// Starts to contend by a task in `home`.
    pub(super) fn contend(
        &mut self,
        seen: Seen,
        yielded: Yielded,
        home: RuntimeId,
        now: Moment,
        effects: &mut Effects,
    ) {
        let wakeup = self.contend_by_task(seen, yielded, now);
        self.move_to(home);
        let yields_to = match yielded {
            Yielded::ToNobody => 0,
            Yielded::To(watchers) => watchers.get(),
            Yielded::ToUnknown => 1,
        };
        effects.work.push(Work::Contend {
            home,
            wakeup,
            yields_to,
        });
    }

    fn contend_by_task(&mut self, seen: Seen, yielded: Yielded, now: Moment) -> Wakeup {
        let wakeup = Arc::new(Notify::new());
        let others_wait = match yielded {
            Yielded::To(_) => true,
            Yielded::ToUnknown => false,
            Yielded::ToNobody => matches!(seen, Seen::Busy(_)),
        };
        self.phase = Phase::Contending(Contending {
            driver: Driver::Task {
                wakeup: Arc::clone(&wakeup),
                attempt: None,
            },
            seen,
            others_wait,
            suspect: false,
            due: now + TAKE_OVER,
        });
        wakeup
    }

    /// Nothing is held here any more: the next in the queue contends.
    pub(super) fn contend_or_idle(&mut self, yielded: Yielded, now: Moment, effects: &mut Effects) {
        match self.first(now, effects) {
            None => self.phase = Phase::Idle,
            Some(claim) => {
                // The runtime of this event runs; that of the waiter may not.
                let home = self.home.unwrap_or(claim.home);
                self.contend(Seen::Busy(now), yielded, home, now, effects);
            }
        }
    }

    fn driven_by(&mut self, wakeup: &Wakeup) -> Option<&mut Contending> {
        match &mut self.phase {
            Phase::Contending(contending) if contending.is_driven_by(wakeup) => Some(contending),
            _ => None,
        }
    }

    /// The task sends an attempt under `lease`, for which a reply comes by `due`. Returns the terms of the
    /// first waiter; `None` ends the task: nobody waits, or another task has taken its place.
    pub(in crate::lock) fn begin_attempt(
        &mut self,
        wakeup: &Wakeup,
        lease: LeaseNumber,
        now: Moment,
        due: Moment,
        effects: &mut Effects,
    ) -> Option<Terms> {
        let terms = self.whom_to_serve(wakeup, now, effects)?.terms;
        self.next_step(wakeup, Some((lease, terms.ttl)), due);
        Some(terms)
    }

    /// The task waits, until `until` at the latest. `None` ends the task, as above.
    pub(in crate::lock) fn pause(
        &mut self,
        wakeup: &Wakeup,
        until: Moment,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<Pause> {
        let deadline = self.whom_to_serve(wakeup, now, effects)?.deadline.moment();
        self.next_step(wakeup, None, until);
        Some(Pause {
            deadline,
            at_once: self.wants_attempt_now(),
        })
    }

    fn whom_to_serve(
        &mut self,
        wakeup: &Wakeup,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<Claim> {
        self.driven_by(wakeup)?;
        let first = self.first(now, effects);
        if first.is_none() {
            self.phase = Phase::Idle;
        }
        first
    }

    /// The task does its next step by `due`.
    fn next_step(&mut self, own: &Wakeup, in_flight: Option<(LeaseNumber, Span)>, due: Moment) {
        if let Some(contending) = self.driven_by(own) {
            contending.due = due + TAKE_OVER;
            if let Driver::Task { attempt, .. } = &mut contending.driver {
                *attempt = in_flight;
            }
        }
    }

    /// The task's attempt succeeded.
    pub(in crate::lock) fn granted(
        &mut self,
        key: &LockKey,
        wakeup: &Wakeup,
        mut lease: Lease,
        home: RuntimeId,
        now: Moment,
        effects: &mut Effects,
    ) {
        let Some(contending) = self.driven_by(wakeup) else {
            // Another task contends in its place: this lease belongs to nobody.
            let ttl = Span::new(lease.longest(now));
            let lease = lease.number();
            effects.work.push(Work::Resolve { lease, ttl, home });
            return;
        };
        let others_wait = contending.others_wait;
        if others_wait {
            lease.take_turns(self.queue.len());
        }
        self.pass_suspicion_on(&mut lease, now);
        match self.first(now, effects) {
            Some(claim) if lease.fits(claim.terms) => {
                self.hand_to_first(now, effects, |claim| Tenure::begin(key, lease, claim, now));
                self.reject_if(now, effects, |claim| claim.deadline.is_one_attempt());
            }
            // The waiter it was for is gone, and no other can use it as it is.
            _ => self.surrender(lease, None, home, now, effects),
        }
    }

    /// The backend refused the task's attempt. Waiters for a single attempt are rejected, unless it was
    /// sent before they came and says that the key is busy: that may be over.
    pub(in crate::lock) fn refused(
        &mut self,
        wakeup: &Wakeup,
        attempt: LeaseNumber,
        seen: Seen,
        now: Moment,
        effects: &mut Effects,
    ) {
        let Some(contending) = self.driven_by(wakeup) else {
            return;
        };
        let busy = matches!(seen, Seen::Busy(_));
        contending.others_wait |= busy;
        contending.seen = seen;
        contending.suspect = false;
        // Tickets and leases are numbered in one order.
        let came_before = |ticket: Ticket| ticket < attempt.get();
        self.reject_if(now, effects, |claim| {
            claim.deadline.is_one_attempt() && (!busy || came_before(claim.ticket))
        });
    }

    /// No attempt will ever succeed: all waiters are rejected and the task ends.
    pub(in crate::lock) fn refused_for_good(
        &mut self,
        wakeup: &Wakeup,
        error: &Error,
        effects: &mut Effects,
    ) {
        if self.driven_by(wakeup).is_some() {
            self.dismiss(error, effects);
            self.phase = Phase::Idle;
        }
    }

    /// All waiters are rejected.
    pub(in crate::lock) fn dismiss(&mut self, error: &Error, effects: &mut Effects) {
        if let Phase::Contending(contending) = &self.phase {
            contending.wake();
        }
        for (_, waiter) in std::mem::take(&mut self.queue) {
            effects.reject(waiter.reply, error.clone());
        }
        self.elsewhere = Elsewhere::Nobody;
    }

    /// The task of this wakeup was dropped with its runtime, which has ended. Waiters in other runtimes go
    /// on; the others are rejected.
    pub(in crate::lock) fn abandon(
        &mut self,
        wakeup: &Wakeup,
        ended: RuntimeId,
        error: &Error,
        now: Moment,
        effects: &mut Effects,
    ) {
        if self.driven_by(wakeup).is_none() {
            return;
        }
        let queue = std::mem::take(&mut self.queue);
        for (ticket, waiter) in queue {
            if waiter.claim.home == ended {
                effects.reject(waiter.reply, error.clone());
            } else {
                self.queue.insert(ticket, waiter);
            }
        }
        self.resolve_attempt(effects);
        self.home = None;
        self.contend_or_idle(Yielded::ToNobody, now, effects);
    }

    /// A task that does not run is replaced by one in `home`.
    pub(super) fn replace_task(&mut self, home: RuntimeId, now: Moment, effects: &mut Effects) {
        self.home = Some(home);
        self.resolve_attempt(effects);
        let Phase::Contending(contending) = &mut self.phase else {
            unreachable!("BUG: only a task that contends is replaced");
        };
        let seen = std::mem::replace(&mut contending.seen, Seen::Nothing);
        self.contend(seen, Yielded::ToNobody, home, now, effects);
    }

    /// The attempt in flight of a task that is given up may have got the lease.
    fn resolve_attempt(&mut self, effects: &mut Effects) {
        let Some(home) = self.home else { return };
        if let Phase::Contending(contending) = &mut self.phase
            && let Driver::Task { attempt, .. } = &mut contending.driver
            && let Some((lease, ttl)) = attempt.take()
        {
            effects.work.push(Work::Resolve { lease, ttl, home });
        }
    }

    pub(super) fn is_suspect(&self) -> bool {
        matches!(&self.phase, Phase::Contending(contending) if contending.suspect)
    }

    fn pass_suspicion_on(&self, lease: &mut Lease, now: Moment) {
        if self.is_suspect() {
            lease.mark_suspect(now);
        }
    }
}
