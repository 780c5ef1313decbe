//! The events of the attempts and pauses of an acquire loop.

use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lane::effect::{Effects, Work};
use crate::lock::lane::state::{Contender, Lane, LastReply, Phase};
use crate::lock::lease::claim::{Claim, Terms, Ticket};
use crate::lock::lease::place::QueuePlace;
use crate::lock::lease::released_to::ReleasedTo;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::observe::Via;
use crate::{Error, LockKey};

/// A rejected attempt of an acquire loop.
#[derive(Debug)]
pub(in crate::lock) struct RejectedAttempt {
    /// The number of the attempt. Each has its own, even if they share a lease.
    pub(in crate::lock) sent: LeaseNumber,
    pub(in crate::lock) seen: LastReply,
    pub(in crate::lock) place: PlaceChange,
}

/// The place of this process in the queue of the backend after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum PlaceChange {
    In(QueuePlace),
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

impl Lane {
    /// Begins an attempt of the task. Its lease is the one in the queue of the
    /// backend, or `fresh`. Returns the lease, and the terms of the first waiter. Returns `None`, which ends the
    /// task, if no waiter is left or another task replaced it.
    pub(in crate::lock) fn begin_attempt(
        &mut self,
        own: &Contender,
        fresh: LeaseNumber,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<(LeaseNumber, Terms)> {
        let terms = self.first_waiter(own, now, effects)?.terms;
        let place = self.driven_by(own)?.place;
        // The waiters of another mode or limit have left.
        if place.is_some_and(|place| (place.mode, place.limit) != (terms.mode, terms.limit)) {
            self.leave_backend(effects);
        }
        let place = self.driven_by(own)?.place;
        let lease = place.map_or(fresh, |place| place.lease);
        self.driven_by(own)?.attempt = Some((lease, terms.ttl));
        Some((lease, terms))
    }

    /// Begins a pause of the task. Returns `None` as [`begin_attempt`](Self::begin_attempt).
    pub(in crate::lock) fn pause(
        &mut self,
        own: &Contender,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<Pause> {
        let deadline = self.first_waiter(own, now, effects)?.deadline.moment();
        Some(Pause {
            deadline,
            at_once: self.wants_attempt_now(),
            place: self.driven_by(own)?.place.map(|place| place.lease),
        })
    }

    fn first_waiter(
        &mut self,
        own: &Contender,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<Claim> {
        self.driven_by(own)?;
        let first = self.first(now, effects).copied();
        if first.is_none() {
            self.leave_backend(effects);
            self.stop_contending(now);
        }
        first
    }

    /// Applies a granted attempt of the task.
    pub(in crate::lock) fn granted(
        &mut self,
        key: &LockKey,
        own: &Contender,
        mut lease: Lease,
        now: Moment,
        effects: &mut Effects,
    ) {
        let Some(contending) = self.driven_by(own) else {
            // Another task has replaced this one, so its lease is released.
            let ttl = lease.longest(now);
            let lease = lease.number();
            effects.work.push(Work::ReleaseUnknown { lease, ttl });
            return;
        };
        if contending.suspect {
            lease.require_renewal(now);
        }
        if contending.others_wait {
            lease.take_turns(self.queue.len(), now);
        }
        match self.first(now, effects) {
            Some(claim) if lease.fits(claim.terms) => {
                self.hand_to_first(key, lease, Via::Backend, now, effects);
                let why = |lane: &mut Self| lane.why_not(now);
                self.reject_if(effects, why, |claim| claim.deadline.is_one_attempt());
            }
            // The waiter has left, and the terms of the next one differ.
            _ => self.begin_return(lease, None, now, effects),
        }
    }

    /// Applies a rejected attempt of the task. Waiters for a single attempt are rejected, except those that came
    /// after a busy attempt was sent: the key may be free by now.
    pub(in crate::lock) fn rejected(
        &mut self,
        own: &Contender,
        refused: RejectedAttempt,
        now: Moment,
        effects: &mut Effects,
    ) {
        let RejectedAttempt { sent, seen, place } = refused;
        let Some(contending) = self.driven_by(own) else {
            // Another task has replaced this one.
            if let PlaceChange::In(place) = place {
                effects.leave(place.lease);
            }
            return;
        };
        let busy = matches!(seen, LastReply::Busy(_));
        match place {
            PlaceChange::In(place) => contending.place = Some(place),
            PlaceChange::Unchanged => {}
            PlaceChange::Out => contending.place = None,
        }
        contending.others_wait |= busy;
        contending.seen = seen;
        contending.suspect = false;
        contending.attempt = None;
        // Tickets and leases share one sequence of numbers.
        let came_before = |ticket: Ticket| ticket < sent.get();
        let why = |lane: &mut Self| lane.why_not(now);
        self.reject_if(effects, why, |claim| {
            claim.deadline.is_one_attempt() && (!busy || came_before(claim.ticket))
        });
    }

    /// Applies an error after which no attempt in `mode` can succeed: rejects its waiters and ends the task. Another
    /// one serves the other waiters.
    pub(in crate::lock) fn refused_for_good(
        &mut self,
        own: &Contender,
        mode: Mode,
        error: &Error,
        now: Moment,
        effects: &mut Effects,
    ) {
        let Some(contending) = self.driven_by(own) else {
            return;
        };
        contending.attempt = None;
        self.reject_if(effects, |_| error.clone(), |claim| claim.terms.mode == mode);
        self.leave_backend(effects);
        if self.queue.is_empty() {
            self.phase = Phase::Idle;
        } else {
            self.contend(LastReply::Nothing, ReleasedTo::Nobody, now, effects);
        }
    }
}
