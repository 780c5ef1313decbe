//! The events of the inline acquire, which drives its own first attempt, and of the acquire loop.

use std::sync::Arc;

use tokio::sync::Notify;

use super::state::{Contending, Driver, Lane, Phase, Seen, Waiter, YIELDING};
use super::tenure::{TAKE_OVER, Tenure};
use crate::Error;
use crate::LockKey;
use crate::lock::attempt::InlineAttempt;
use crate::lock::claim::{Claim, Terms, Ticket};
use crate::lock::clock::{Moment, Span};
use crate::lock::effect::{Effects, Wakeup, Work};
use crate::lock::grant::Grant;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::lock::yielded::{PLACE, Yielded};
use crate::task::RuntimeId;

/// An attempt that a task finishes for its acquire, which becomes `waiter`.
#[derive(Debug)]
pub(in crate::lock) struct TakeOver {
    pub(in crate::lock) in_flight: (LeaseNumber, Span),
    pub(in crate::lock) waiter: Box<Waiter>,
    /// The runtime of the task.
    pub(in crate::lock) home: RuntimeId,
    pub(in crate::lock) now: Moment,
    /// When the attempt has a reply or an error.
    pub(in crate::lock) due: Moment,
}

/// A rejected attempt of an acquire loop.
#[derive(Debug)]
pub(in crate::lock) struct Refused {
    /// The number of the attempt. Each has its own, even if they share a lease.
    pub(in crate::lock) sent: LeaseNumber,
    pub(in crate::lock) seen: Seen,
    pub(in crate::lock) place: Place,
    /// The runtime of the task.
    pub(in crate::lock) home: RuntimeId,
}

/// The place of this process in the queue of the backend after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Place {
    In(LeaseNumber),
    /// The attempt did not take effect.
    Unchanged,
    /// The attempt did not enter the queue, or its lease is being released.
    Out,
}

/// The pause of an acquire loop.
#[derive(Debug)]
pub(in crate::lock) struct Pause {
    /// The deadline of the first waiter.
    pub(in crate::lock) deadline: Option<Moment>,
    /// Whether a waiter needs an attempt now.
    pub(in crate::lock) at_once: bool,
    /// The lease in the queue of the backend.
    pub(in crate::lock) place: Option<LeaseNumber>,
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

    /// Begins to contend in an idle lane, by an acquire that drives its first attempt.
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
            place: None,
            suspect: false,
            due: now + TAKE_OVER,
        });
    }

    /// Applies a granted first attempt. Waiters for a single attempt, now behind a holder, are rejected.
    pub(in crate::lock) fn granted_inline(
        &mut self,
        key: &LockKey,
        claim: &Claim,
        mut lease: Lease,
        now: Moment,
        effects: &mut Effects,
    ) -> Arc<Grant> {
        self.pass_suspicion_on(&mut lease, now);
        self.move_to(claim.home);
        let tenure = Tenure::begin(key, lease, claim, now);
        let grant = self.hold(tenure);
        if !self.queue.is_empty() {
            self.grant_companions(claim, &grant, now, effects);
            self.reject_if(now, effects, |claim| claim.deadline.is_one_attempt());
        }
        grant
    }

    /// Queues the acquire after a rejected first attempt, and starts a task that contends.
    pub(in crate::lock) fn inline_queues(
        &mut self,
        waiter: Waiter,
        seen: Seen,
        now: Moment,
        effects: &mut Effects,
    ) {
        let home = waiter.claim.home;
        self.queue.insert(Box::new(waiter));
        self.contend(seen, Yielded::ToNobody, home, now, effects);
    }

    /// Ends the inline acquire after its attempt, or with it in flight. A task then finishes the attempt
    /// and contends for the queue. Returns the wakeup of a task that the caller has to start.
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

    /// Queues an inline acquire that is not polled, and lets a task finish its attempt. Returns the waiter
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
        self.queue.insert(waiter);
        let wakeup = self.inline_leaves(Some(in_flight), Seen::Nothing, home, now, due, effects);
        let Some(wakeup) = wakeup else {
            unreachable!("BUG: an attempt in flight needs a task");
        };
        Ok(wakeup)
    }

    // ---- the task ---------------------------------------------------------------------------

    /// Begins to contend by a task in `home`.
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
        effects.work.push(Work::Contend {
            home,
            wakeup,
            yielded,
        });
    }

    fn contend_by_task(&mut self, seen: Seen, yielded: Yielded, now: Moment) -> Wakeup {
        let wakeup = Arc::new(Notify::new());
        let others_wait = match yielded {
            Yielded::To(_) | Yielded::ToQueue { .. } => true,
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
            place: yielded.place(),
            suspect: false,
            due: now + TAKE_OVER,
        });
        wakeup
    }

    /// Begins to contend for the next waiter, or becomes idle. The lane holds no lease any more.
    pub(super) fn contend_or_idle(&mut self, yielded: Yielded, now: Moment, effects: &mut Effects) {
        let own = self.home;
        match self.first(now, effects) {
            None => {
                if let Some((place, home)) = yielded.place().zip(own) {
                    effects.leave(place, home);
                }
                self.phase = match yielded {
                    Yielded::ToQueue { .. } => Phase::Yielding {
                        until: now + YIELDING,
                    },
                    Yielded::ToNobody | Yielded::To(_) | Yielded::ToUnknown => Phase::Idle,
                };
            }
            Some(claim) => {
                // The runtime of this event runs, but that of the waiter may not.
                let home = own.unwrap_or(claim.home);
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

    /// Begins an attempt of the task, whose reply is due by `due`. Its lease is the one in the queue of the
    /// backend, or `fresh`. Returns the lease, and the terms of the first waiter. Returns `None`, which ends the
    /// task, if no waiter is left or another task replaced it.
    pub(in crate::lock) fn begin_attempt(
        &mut self,
        wakeup: &Wakeup,
        fresh: LeaseNumber,
        now: Moment,
        due: Moment,
        effects: &mut Effects,
    ) -> Option<(LeaseNumber, Terms)> {
        let terms = self.whom_to_serve(wakeup, now, effects)?.terms;
        let lease = self.driven_by(wakeup)?.place.unwrap_or(fresh);
        self.next_step(wakeup, Some((lease, terms.ttl)), due);
        Some((lease, terms))
    }

    /// Begins a pause of the task until `until`. Returns `None` as [`begin_attempt`](Self::begin_attempt).
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
            place: self.driven_by(wakeup)?.place,
        })
    }

    fn whom_to_serve(
        &mut self,
        wakeup: &Wakeup,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<Claim> {
        self.driven_by(wakeup)?;
        let first = self.first(now, effects).copied();
        if first.is_none() {
            self.leave_place(effects);
            self.phase = Phase::Idle;
        }
        first
    }

    /// Records the next step of the task, which ends by `due`.
    fn next_step(&mut self, own: &Wakeup, in_flight: Option<(LeaseNumber, Span)>, due: Moment) {
        if let Some(contending) = self.driven_by(own) {
            contending.due = due + TAKE_OVER;
            if let Driver::Task { attempt, .. } = &mut contending.driver {
                *attempt = in_flight;
            }
        }
    }

    /// Applies a granted attempt of the task.
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
            // Another task has replaced this one, so its lease is released.
            let ttl = lease.longest(now);
            let lease = lease.number();
            effects.work.push(Work::Resolve { lease, ttl, home });
            return;
        };
        if contending.others_wait {
            lease.take_turns(self.queue.len(), now);
        }
        self.pass_suspicion_on(&mut lease, now);
        match self.first(now, effects) {
            Some(claim) if lease.fits(claim.terms) => {
                self.hand_to_first(now, effects, |claim| Tenure::begin(key, lease, claim, now));
                self.reject_if(now, effects, |claim| claim.deadline.is_one_attempt());
            }
            // The waiter has left, and the terms of the next one differ.
            _ => self.surrender(lease, None, home, now, effects),
        }
    }

    /// Applies a rejected attempt of the task. Waiters for a single attempt are rejected, except those that came
    /// after a busy attempt was sent: the key may be free by now.
    pub(in crate::lock) fn refused(
        &mut self,
        wakeup: &Wakeup,
        refused: Refused,
        now: Moment,
        effects: &mut Effects,
    ) {
        let Refused {
            sent,
            seen,
            place,
            home,
        } = refused;
        let Some(contending) = self.driven_by(wakeup) else {
            // Another task has replaced this one.
            if let Place::In(place) = place {
                effects.leave(place, home);
            }
            return;
        };
        let busy = matches!(seen, Seen::Busy(_));
        match place {
            Place::In(place) => contending.place = Some(place),
            Place::Unchanged => {}
            Place::Out => contending.place = None,
        }
        contending.others_wait |= busy;
        contending.seen = seen;
        contending.suspect = false;
        if let Driver::Task { attempt, .. } = &mut contending.driver {
            *attempt = None;
        }
        // Tickets and leases share one sequence of numbers.
        let came_before = |ticket: Ticket| ticket < sent.get();
        self.reject_if(now, effects, |claim| {
            claim.deadline.is_one_attempt() && (!busy || came_before(claim.ticket))
        });
    }

    /// Applies an error after which no attempt can succeed: rejects all waiters and ends the task.
    pub(in crate::lock) fn refused_for_good(
        &mut self,
        wakeup: &Wakeup,
        error: &Error,
        effects: &mut Effects,
    ) {
        if self.driven_by(wakeup).is_some() {
            self.dismiss(error, effects);
            self.leave_place(effects);
            self.phase = Phase::Idle;
        }
    }

    /// Rejects all waiters.
    pub(in crate::lock) fn dismiss(&mut self, error: &Error, effects: &mut Effects) {
        match &self.phase {
            Phase::Contending(contending) => contending.wake(),
            Phase::Yielding { .. } => self.phase = Phase::Idle,
            Phase::Idle | Phase::Held(_) | Phase::Returning(_) => {}
        }
        for waiter in self.queue.take() {
            effects.reject(waiter.reply, error.clone());
        }
        if self.holder_homes().is_empty() {
            self.queue.forget_elsewhere();
        }
    }

    /// Applies the drop of the task with its runtime, which has ended. Rejects the waiters of that runtime,
    /// and contends for the others.
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
        for waiter in self.queue.take() {
            if waiter.claim.home == ended {
                effects.reject(waiter.reply, error.clone());
            } else {
                self.queue.insert(waiter);
            }
        }
        let place = self.end_task(effects);
        if self.first(now, effects).is_none() {
            if let Some(place) = place {
                effects.leave(place, ended);
            }
            self.phase = Phase::Idle;
            return;
        }
        self.set_home(None);
        self.contend_or_idle(Yielded::behind(place), now, effects);
    }

    /// Replaces a task that does not run by one in `home`.
    pub(super) fn replace_task(&mut self, home: RuntimeId, now: Moment, effects: &mut Effects) {
        self.set_home(Some(home));
        let place = self.end_task(effects);
        let Phase::Contending(contending) = &mut self.phase else {
            unreachable!("BUG: only a task that contends is replaced");
        };
        let seen = std::mem::replace(&mut contending.seen, Seen::Nothing);
        self.contend(seen, Yielded::behind(place), home, now, effects);
    }

    /// Ends a task that another one replaces. Returns the place in the queue of the backend, for the other one.
    ///
    /// If an attempt is in flight, its lease is released instead: the ended task may yet receive the grant.
    fn end_task(&mut self, effects: &mut Effects) -> Option<LeaseNumber> {
        let Phase::Contending(contending) = &mut self.phase else {
            return None;
        };
        let place = contending.place.take();
        if let Driver::Task { attempt, .. } = &mut contending.driver
            && let Some((lease, ttl)) = attempt.take()
            && let Some(home) = self.home
        {
            let ttl = ttl.max(PLACE);
            effects.work.push(Work::Resolve { lease, ttl, home });
            return None;
        }
        place
    }

    /// Leaves a lease to which the backend transferred the key, unless the task waits under it. A backend that lost
    /// its last writes may have an earlier place of this process.
    pub(in crate::lock) fn transferred_to(
        &mut self,
        wakeup: &Wakeup,
        lease: LeaseNumber,
        effects: &mut Effects,
    ) {
        // If another task has replaced this one, the lease may be its own.
        if let Some(contending) = self.driven_by(wakeup)
            && contending.place != Some(lease)
            && let Some(home) = self.home
        {
            effects.leave(lease, home);
        }
    }

    /// Leaves the queue of the backend.
    fn leave_place(&mut self, effects: &mut Effects) {
        if let Phase::Contending(contending) = &mut self.phase
            && let Some(place) = contending.place.take()
            && let Some(home) = self.home
        {
            effects.leave(place, home);
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
