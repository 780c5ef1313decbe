//! The events of the inline acquire, which drives its own first attempt.

use std::sync::Arc;

use super::state::{Contender, Contending, InlineAcquire, Lane, Phase, Seen};
use super::tenure::{TAKE_OVER, Tenure};
use super::waiters::Waiter;
use crate::LockKey;
use crate::lock::attempt::InlineAttempt;
use crate::lock::claim::Claim;
use crate::lock::clock::{Moment, Span};
use crate::lock::effect::{Effects, Wakeup};
use crate::lock::grant::Grant;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::lock::yielded::Yielded;
use crate::observe::Via;
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

impl Lane {
    /// Begins to contend in an idle lane, by an acquire that drives its first attempt.
    pub(in crate::lock) fn contend_inline(
        &mut self,
        attempt: &Arc<InlineAttempt>,
        claim: &Claim,
        now: Moment,
    ) {
        self.move_to(claim.home);
        let yields_until = match self.phase {
            Phase::Yielding { until } => Some(until),
            _ => None,
        };
        self.phase = Phase::Contending(Contending {
            contender: Contender::Inline(InlineAcquire {
                attempt: Arc::clone(attempt),
                deadline: claim.deadline.moment(),
            }),
            seen: Seen::Nothing,
            others_wait: false,
            yields_until,
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
        let tenure = Tenure::begin(key, lease, Via::Backend, claim, now);
        let grant = self.hold(tenure);
        if !self.queue.is_empty() {
            self.grant_companions(claim, &grant, now, effects);
            self.admit(key, now, effects);
            self.reject_if(now, effects, |claim| claim.deadline.is_one_attempt());
            self.admit(key, now, effects);
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
        if self.queue.is_empty() {
            self.begin_queue(now);
        }
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
                self.stop_contending(now);
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
            contending.contender = Contender::Loop {
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
                contender: Contender::Inline(InlineAcquire { attempt: own, .. }),
                ..
            }) if Arc::ptr_eq(own, attempt) => {}
            _ => return Err(waiter),
        }
        if self.queue.is_empty() {
            self.begin_queue(now);
        }
        self.queue.insert(waiter);
        let wakeup = self.inline_leaves(Some(in_flight), Seen::Nothing, home, now, due, effects);
        let Some(wakeup) = wakeup else {
            unreachable!("BUG: an attempt in flight needs a task");
        };
        Ok(wakeup)
    }
}
