//! The events of the attempts and pauses of an acquire loop.

use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lane::{Effects, Lane, LastReply, Phase};
use crate::lock::lease::{Claim, Lease, LeaseNumber, QueuePlace, ReleasedTo, Terms, Ticket};
use crate::observe::Via;
use crate::{Error, LockKey};

/// The place of this process in the queue of the backend after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceChange {
    In(QueuePlace),
    /// The attempt did not take effect.
    Unchanged,
    /// The attempt did not enter the queue, or its lease is being released.
    Out,
}

/// The pause of an acquire loop.
#[derive(Debug)]
pub(crate) struct Pause {
    /// The deadline of the first waiter.
    pub(crate) deadline: Option<Moment>,
    /// Whether a waiter needs an attempt now.
    pub(crate) at_once: bool,
    /// The lease in the queue of the backend.
    pub(crate) place: Option<LeaseNumber>,
}

impl Lane {
    /// Begins an attempt of the loop. Its lease is the one in the queue of the
    /// backend, or `fresh`. Returns the lease, and the terms of the first waiter. Returns `None`, which ends the
    /// loop, if no waiter is left.
    pub(crate) fn begin_attempt(
        &mut self,
        fresh: LeaseNumber,
        effects: &mut Effects,
    ) -> Option<(LeaseNumber, Terms)> {
        let terms = self.first_waiter(effects)?.terms;
        let place = self.contending().place;
        // The waiters of another mode or limit have left.
        if place.is_some_and(|place| (place.mode, place.limit) != (terms.mode, terms.limit)) {
            self.leave_backend(effects);
        }
        let contending = self.contending();
        let lease = contending.place.map_or(fresh, |place| place.lease);
        contending.attempt = Some((lease, terms.ttl));
        Some((lease, terms))
    }

    /// Begins a pause of the loop. Returns `None` as [`begin_attempt`](Self::begin_attempt).
    pub(crate) fn pause(&mut self, effects: &mut Effects) -> Option<Pause> {
        let deadline = self.first_waiter(effects)?.deadline.moment();
        Some(Pause {
            deadline,
            at_once: self.wants_attempt_now(),
            place: self.contending().place.map(|place| place.lease),
        })
    }

    fn first_waiter(&mut self, effects: &mut Effects) -> Option<Claim> {
        let first = self.first(effects).copied();
        if first.is_none() {
            self.leave_backend(effects);
            self.stop_contending(effects.now);
        }
        first
    }

    /// Applies a granted attempt of the task.
    pub(crate) fn granted(&mut self, key: &LockKey, mut lease: Lease, effects: &mut Effects) {
        let contending = self.contending();
        if contending.suspect {
            lease.require_renewal(effects.now);
        }
        if contending.others_wait {
            lease.begin_turn(self.queue.len(), effects.now);
        }
        match self.first(effects) {
            Some(claim) if lease.fits(claim.terms) => {
                self.hand_to_first(key, lease, Via::Backend, effects);
                let which = |claim: &Claim| claim.deadline.is_one_attempt();
                self.reject_if(effects, Self::why_not, which);
            }
            // The waiter has left, and the terms of the next one differ.
            _ => self.begin_return(lease, None, effects),
        }
    }

    /// Applies a rejected attempt of the task. Waiters for a single attempt are rejected, except those that came
    /// after a busy attempt was sent: the key may be free by now. `sent`: the number of the attempt. Each has its own, even
    /// if they share a lease.
    pub(crate) fn rejected(
        &mut self,
        sent: LeaseNumber,
        seen: LastReply,
        place: PlaceChange,
        effects: &mut Effects,
    ) {
        let contending = self.contending();
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
        self.reject_if(effects, Self::why_not, |claim| {
            claim.deadline.is_one_attempt() && (!busy || came_before(claim.ticket))
        });
    }

    /// Applies an error after which no attempt in `mode` can succeed: rejects its waiters and ends the task. Another
    /// one serves the other waiters.
    pub(crate) fn refused_for_good(&mut self, mode: Mode, error: &Error, effects: &mut Effects) {
        self.contending().attempt = None;
        self.reject_if(
            effects,
            |_, _| error.clone(),
            |claim| claim.terms.mode == mode,
        );
        self.leave_backend(effects);
        if self.queue.is_empty() {
            self.phase = Phase::Idle;
        } else {
            self.contend(LastReply::Nothing, ReleasedTo::Nobody, effects);
        }
    }
}
