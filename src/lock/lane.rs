//! All that this process knows of one key: who holds it, under which lease, and who waits.
//!
//! A lane is a state machine without I/O or tasks of its own. Each method is one event of
//! the table in [`super`]: it changes the state under the mutex of the lane table and returns what
//! is to be done about it once the mutex is free ([`Next`]). The events of the watchdog and those of
//! the releaser are in files of their own.

mod renewing;
mod returning;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::MAX_HOLD_COUNT;
use super::grant::Grant;
use super::lease::{Lease, LeaseNumber, Terms};
use super::moment::Moment;
use super::order::{
    A_TURN, Bell, Claim, Entered, Granted, Left, Next, Report, Seen, Surrender, Ticket, Waiter,
};
use crate::{Error, ErrorKind, LockKey};

#[derive(Debug, Default)]
pub(super) struct Lane {
    phase: Phase,
    /// Boxed: a node of the tree has room for more than it mostly holds.
    queue: BTreeMap<Ticket, Box<Waiter>>,
}

#[derive(Debug, Default)]
enum Phase {
    /// Nothing here; the lane is about to leave the table.
    #[default]
    Idle,
    Contending(Contending),
    Held(Tenure),
    /// Nobody here holds the lease any more. It may be taken back until the releaser comes for it.
    Surrendered(Surrender),
    /// On its way back to the backend.
    Returning {
        number: LeaseNumber,
        /// When it has run out by itself, should the task that returns it die with its runtime.
        until: Moment,
    },
}

/// Somebody talks to the backend about this key: the acquire that came first, which drives its own
/// first try, or a task.
#[derive(Debug)]
struct Contending {
    /// The bell of the task; absent while a driver is at it.
    bell: Option<Bell>,
    seen: Seen,
    /// Another process has the key, or waited when it was given up here.
    others_wait: bool,
    /// What the try on the wire has got may be lost already.
    in_doubt: bool,
}

#[derive(Debug)]
struct Tenure {
    lease: Lease,
    grant: Arc<Grant>,
}

impl Lane {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.queue.is_empty()
    }

    pub(super) fn waiters(&self) -> usize {
        self.queue.len()
    }

    /// Waiters, and the driver that may become one.
    pub(super) fn seats_taken(&self) -> usize {
        let driven = matches!(
            &self.phase,
            Phase::Contending(Contending { bell: None, .. })
        );
        self.queue.len() + usize::from(driven)
    }

    pub(super) fn holder(&self) -> Option<&Arc<Grant>> {
        match &self.phase {
            Phase::Held(tenure) => Some(&tenure.grant),
            _ => None,
        }
    }

    pub(super) fn is_returning(&self) -> bool {
        self.returned_by().is_some()
    }

    /// When the lease that goes back has run out by itself.
    fn returned_by(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Surrendered(surrender) => Some(surrender.lease.expires_at()),
            Phase::Returning { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Whether the watchdog has anything to look at.
    pub(super) fn is_watched(&self) -> bool {
        self.holder().is_some() || self.is_returning()
    }

    // ---- entering and leaving -------------------------------------------------------------

    pub(super) fn enter(&mut self, key: &LockKey, claim: Claim, now: Moment) -> Entered {
        match &mut self.phase {
            Phase::Idle => {
                self.phase = Phase::Contending(Contending {
                    bell: None,
                    seen: Seen::Nothing,
                    others_wait: false,
                    in_doubt: false,
                });
                Entered::Drive
            }
            Phase::Held(tenure)
                if tenure.grant.owner() == claim.owner && tenure.grant.is_held(now) =>
            {
                let holds = tenure.grant.holds();
                if holds >= MAX_HOLD_COUNT {
                    return Entered::Refused(Error::new(ErrorKind::ReentrancyLimit));
                }
                tenure.grant.set_holds(holds + 1);
                tenure.lease.widen(claim.terms, now);
                Entered::Granted(tenure.granted())
            }
            Phase::Surrendered(surrender)
                if self.queue.is_empty() && surrender.lease.may_pass_to(claim.terms, now) =>
            {
                match std::mem::take(&mut self.phase) {
                    Phase::Surrendered(Surrender { lease, report }) => {
                        let tenure = Tenure::handed_on(key, lease, claim, now);
                        Entered::TookBack(self.hold(tenure), report)
                    }
                    _ => Entered::Occupied,
                }
            }
            // The first answer is still to come, to a driver or to the task it left its try to: it is
            // the answer to this one too.
            Phase::Contending(Contending {
                seen: Seen::Nothing,
                ..
            }) if claim.is_one_try() => Entered::Occupied,
            // Others are before it.
            Phase::Surrendered(_) | Phase::Returning { .. }
                if claim.is_one_try() && !self.queue.is_empty() =>
            {
                Entered::Refused(self.why_not(now))
            }
            // The owner of a lost grant is a stranger like any other.
            Phase::Held(_) | Phase::Contending(_) if claim.is_one_try() => {
                Entered::Refused(self.why_not(now))
            }
            _ => Entered::Occupied,
        }
    }

    /// Joins the queue, in the order of the tickets.
    pub(super) fn enqueue(&mut self, waiter: Waiter) -> Next {
        self.queue.insert(waiter.claim.ticket, Box::new(waiter));
        self.returned_by().map_or(Next::Nothing, Next::Look)
    }

    /// A waiter leaves. `None` if it has been served or refused already.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let was_first = self.queue.first_key_value().map(|(first, _)| *first) == Some(ticket);
        let waiter = *self.queue.remove(&ticket)?;
        if was_first && let Phase::Contending(contending) = &self.phase {
            contending.ring();
        }
        Some(waiter)
    }

    /// Why somebody who asks now would not get the lock.
    pub(super) fn why_not(&self, now: Moment) -> Error {
        let (until, held_for) = match &self.phase {
            Phase::Contending(Contending {
                seen: Seen::Busy(until),
                ..
            }) => (*until, Duration::ZERO),
            // It is the driver that is in the way; its first answer is still to come.
            Phase::Contending(Contending {
                bell: None,
                seen: Seen::Nothing,
                ..
            }) => (now, Duration::ZERO),
            Phase::Contending(contending) => return contending.seen.error(),
            Phase::Held(tenure) => (
                tenure.grant.valid_until(),
                now.since(tenure.grant.granted_at()),
            ),
            Phase::Idle | Phase::Surrendered(_) | Phase::Returning { .. } => (now, Duration::ZERO),
        };
        let ahead = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let queue = held_for.max(A_TURN).saturating_mul(ahead.saturating_add(1));
        let lease = until.since(now);
        Error::new(ErrorKind::Busy).with_retry_after(lease.min(queue))
    }

    // ---- contending -----------------------------------------------------------------------

    /// The first try of the driver succeeded. Those who asked for a single try meanwhile are
    /// returned, to be refused.
    pub(super) fn granted_to_driver(
        &mut self,
        key: &LockKey,
        claim: Claim,
        mut lease: Lease,
        now: Moment,
    ) -> (Granted, Vec<(Waiter, Error)>) {
        self.pass_doubt_on(&mut lease, now);
        let granted = self.hold(Tenure::begin(key, lease, claim, now));
        (granted, self.take_once(now))
    }

    /// The driver has made its try and queues; a task goes on contending.
    pub(super) fn driver_queues(&mut self, waiter: Waiter, seen: Seen) -> Next {
        self.queue.insert(waiter.claim.ticket, Box::new(waiter));
        self.contend(seen, None)
    }

    /// The driver is gone. A task has to go on for others who queue, or because its try is still
    /// on the wire.
    pub(super) fn driver_leaves(&mut self, on_the_wire: bool, seen: Seen) -> Next {
        if on_the_wire || !self.queue.is_empty() {
            let in_doubt = on_the_wire && self.is_in_doubt();
            let next = self.contend(seen, None);
            if let Phase::Contending(contending) = &mut self.phase {
                contending.in_doubt = in_doubt;
            }
            next
        } else {
            self.phase = Phase::Idle;
            Next::Nothing
        }
    }

    /// `passed`: it was given up for so many others, or nobody knows for how many if 0.
    fn contend(&mut self, seen: Seen, passed: Option<u32>) -> Next {
        let bell = Bell::default();
        let others_wait = match passed {
            Some(watchers) => watchers > 0,
            None => matches!(seen, Seen::Busy(_)),
        };
        self.phase = Phase::Contending(Contending {
            bell: Some(Arc::clone(&bell)),
            seen,
            others_wait,
            in_doubt: false,
        });
        let behind = passed.map_or(0, |watchers| watchers.max(1));
        Next::Contend { bell, behind }
    }

    /// For whom the contending task tries next, and until when; without anybody the lane is idle
    /// and the task ends.
    pub(super) fn first_in_line(&mut self) -> Option<(Terms, Option<Moment>)> {
        let first = self.queue.values().next();
        if first.is_none() && matches!(self.phase, Phase::Contending(_)) {
            self.phase = Phase::Idle;
        }
        first.map(|waiter| (waiter.claim.terms, waiter.claim.patience.deadline()))
    }

    /// The contending task got the lease.
    pub(super) fn granted(&mut self, key: &LockKey, mut lease: Lease, now: Moment) -> Next {
        if let Phase::Contending(contending) = &self.phase
            && contending.others_wait
        {
            lease.take_turns(self.queue.len());
        }
        self.pass_doubt_on(&mut lease, now);
        let fits = (self.queue.values().next()).is_some_and(|first| lease.fits(first.claim.terms));
        // The one it was for is gone and nobody else can use it as it is.
        if !fits {
            return self.give_back(lease, None);
        }
        let mut next = self.hand_to_first(|claim| Tenure::begin(key, lease, claim, now));
        if let Next::Grant(_, _, refused, _) = &mut next {
            refused.append(&mut self.take_once(now));
        }
        next
    }

    fn is_in_doubt(&self) -> bool {
        matches!(&self.phase, Phase::Contending(contending) if contending.in_doubt)
    }

    fn pass_doubt_on(&self, lease: &mut Lease, now: Moment) {
        if self.is_in_doubt() {
            lease.doubt(now);
        }
    }

    /// The backend refused the contending task's try. Those who asked for a single try are
    /// returned, to be refused.
    pub(super) fn refused(&mut self, seen: Seen, now: Moment) -> Vec<(Waiter, Error)> {
        if let Phase::Contending(contending) = &mut self.phase {
            contending.others_wait |= matches!(seen, Seen::Busy(_));
            contending.seen = seen;
            contending.in_doubt = false;
        }
        self.take_once(now)
    }

    fn take_once(&mut self, now: Moment) -> Vec<(Waiter, Error)> {
        let once: Vec<Ticket> = (self.queue.iter())
            .filter(|(_, waiter)| waiter.claim.is_one_try())
            .map(|(ticket, _)| *ticket)
            .collect();
        let mut refused = Vec::with_capacity(once.len());
        for ticket in once {
            if let Some(waiter) = self.queue.remove(&ticket) {
                refused.push((*waiter, self.why_not(now)));
            }
        }
        refused
    }

    /// Nobody here can ever get the lock, or nobody may: the queue is returned, to be refused.
    pub(super) fn dismiss(&mut self) -> Vec<Waiter> {
        if let Phase::Contending(contending) = &self.phase {
            contending.ring();
        }
        let queue = std::mem::take(&mut self.queue);
        queue.into_values().map(|waiter| *waiter).collect()
    }

    /// The task with this bell is gone before its time. Those who queue are returned, to be refused.
    pub(super) fn abandon(&mut self, bell: &Bell) -> Vec<Waiter> {
        match &self.phase {
            Phase::Contending(Contending {
                bell: Some(own), ..
            }) if Arc::ptr_eq(own, bell) => {
                self.phase = Phase::Idle;
                self.dismiss()
            }
            _ => Vec::new(),
        }
    }

    // ---- holding --------------------------------------------------------------------------

    /// One hold of `grant` ends.
    pub(super) fn release(
        &mut self,
        key: &LockKey,
        grant: &Arc<Grant>,
        now: Moment,
        report: Option<Report>,
    ) -> Left {
        let holds = grant.holds() - 1;
        grant.set_holds(holds);
        if !self
            .holder()
            .is_some_and(|current| Arc::ptr_eq(current, grant))
        {
            return Left::Lost;
        }
        if holds > 0 {
            return Left::Done(Next::Nothing);
        }
        let Phase::Held(Tenure { lease, .. }) = std::mem::take(&mut self.phase) else {
            return Left::Lost;
        };
        let hand_on = (self.queue.values().next())
            .is_some_and(|first| lease.may_pass_to(first.claim.terms, now));
        if hand_on {
            Left::Done(self.hand_to_first(|claim| Tenure::handed_on(key, lease, claim, now)))
        } else {
            Left::Returning(self.give_back(lease, report))
        }
    }

    fn hand_to_first(&mut self, begin: impl FnOnce(Claim) -> Tenure) -> Next {
        let Some((_, waiter)) = self.queue.pop_first() else {
            return Next::Nothing;
        };
        let granted = self.hold(begin(waiter.claim));
        // It queued for one try, in a queue that was empty, and was overtaken.
        let mut overtaken = Vec::new();
        while let Some(next) = self.queue.first_entry()
            && next.get().claim.is_one_try()
        {
            let waiter = *next.remove();
            overtaken.push((waiter, self.why_not(granted.grant.granted_at())));
        }
        let ask_ahead = self.ask_ahead(granted.grant.granted_at());
        Next::Grant(waiter.reply, granted, overtaken, ask_ahead)
    }

    /// The lease, if the next in the queue would have to wait for the backend soon.
    fn ask_ahead(&mut self, now: Moment) -> Option<LeaseNumber> {
        let Phase::Held(Tenure { lease, .. }) = &mut self.phase else {
            return None;
        };
        let next = self.queue.values().next()?;
        let asks = lease.may_pass_to(next.claim.terms, now) && lease.asks_ahead(now);
        asks.then(|| lease.number())
    }

    fn hold(&mut self, tenure: Tenure) -> Granted {
        let granted = tenure.granted();
        self.phase = Phase::Held(tenure);
        granted
    }

    fn give_back(&mut self, lease: Lease, report: Option<Report>) -> Next {
        // No renewal may be sent after the release: one that is on the wire is waited for.
        let next = if lease.is_renewing() {
            Next::Nothing
        } else {
            Next::Return
        };
        self.phase = Phase::Surrendered(Surrender { lease, report });
        next
    }

    /// Several locks are held as one: the next hand-off of this one takes a fresh counter, so
    /// that the largest token of the group separates the holders of each.
    pub(super) fn retire_counter(&mut self, grant: &Arc<Grant>) {
        if let Phase::Held(tenure) = &mut self.phase
            && Arc::ptr_eq(&tenure.grant, grant)
        {
            tenure.lease.end_budget();
        }
    }

    // ---- losing ---------------------------------------------------------------------------

    /// The backend may have lost what is held, or what a try on the wire has got.
    pub(super) fn doubt(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Held(tenure) => tenure.lease.doubt(now),
            Phase::Contending(contending) => contending.in_doubt = true,
            _ => {}
        }
    }

    /// The lease that is held, or may still be taken back.
    pub(super) fn lease_number(&self) -> Option<LeaseNumber> {
        match &self.phase {
            Phase::Held(tenure) => Some(tenure.lease.number()),
            Phase::Surrendered(surrender) => Some(surrender.lease.number()),
            Phase::Returning { number, .. } => Some(*number),
            _ => None,
        }
    }

    /// The key was forced open in the backend, by a command that went out when the lease `seen` was here.
    pub(super) fn forced_open(
        &mut self,
        seen: Option<LeaseNumber>,
        now: Moment,
    ) -> (Option<Arc<Grant>>, Next) {
        match &self.phase {
            // It came since; or before, and its answer since: a renewal tells.
            Phase::Held(tenure) if seen != Some(tenure.lease.number()) => {
                self.doubt(now);
                (None, Next::Look(now))
            }
            Phase::Contending(_) => {
                self.doubt(now);
                (None, Next::Nothing)
            }
            // Also whoever the lease was handed to since.
            _ => self.lose(),
        }
    }

    /// The backend does not hold the lease any more.
    pub(super) fn lose(&mut self) -> (Option<Arc<Grant>>, Next) {
        match &mut self.phase {
            Phase::Held(Tenure { grant, .. }) => {
                let grant = Arc::clone(grant);
                (Some(grant), self.contend_or_idle(None))
            }
            Phase::Surrendered(surrender) => {
                surrender.lease.end_budget();
                (None, Next::Nothing)
            }
            // An answer that it was kept is from before.
            Phase::Returning { .. } => (None, self.contend_or_idle(None)),
            Phase::Idle | Phase::Contending(_) => (None, Next::Nothing),
        }
    }

    /// Nothing is held here any more: the next in the queue contends.
    fn contend_or_idle(&mut self, passed: Option<u32>) -> Next {
        if self.queue.is_empty() {
            self.phase = Phase::Idle;
            Next::Nothing
        } else {
            self.contend(Seen::Busy(Moment::now()), passed)
        }
    }
}

impl Contending {
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.notify_one();
        }
    }
}

impl Tenure {
    /// The first holder of a lease, or the first one under a fresh counter.
    fn begin(key: &LockKey, lease: Lease, claim: Claim, now: Moment) -> Self {
        let grant = Grant::new(
            key.clone(),
            claim.owner,
            lease.token(),
            now,
            lease.valid_until(),
            claim.terms.max_hold,
        );
        Self { lease, grant }
    }

    /// The next holder of a lease, in this process: a fresh token, no round trip.
    fn handed_on(key: &LockKey, mut lease: Lease, claim: Claim, now: Moment) -> Self {
        lease.hand_on();
        Self::begin(key, lease, claim, now)
    }

    /// When the watchdog has to look at it.
    fn next_look(&self) -> Moment {
        let valid_until = self.grant.valid_until();
        (self.lease.next_renewal()).map_or(valid_until, |renewal| renewal.min(valid_until))
    }

    fn granted(&self) -> Granted {
        Granted {
            grant: Arc::clone(&self.grant),
            next_look: self.next_look(),
        }
    }
}

#[cfg(test)]
mod tests;
