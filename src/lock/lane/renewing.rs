//! How a lease is made to last: the replies to renewals, and to what is asked ahead of need.

use std::time::Duration;

use super::state::{Lane, Phase};
use crate::backend::{BackendError, Extended, Renewal, Renewed};
use crate::lock::clock::{Moment, Span};
use crate::lock::effect::{Effects, Work};
use crate::lock::lease::{Lease, LeaseNumber};
use crate::task::RuntimeId;

impl Lane {
    /// Returns `true` if a renewal that was due is still to be sent.
    pub(in crate::lock) fn wants_renewal(&self, renewal: &Renewal, now: Moment) -> bool {
        matches!(&self.phase, Phase::Held(tenure)
            if tenure.lease.is(renewal.lease) && now < tenure.grant.valid_until())
    }

    /// The backend replied to a renewal.
    pub(in crate::lock) fn renewed(
        &mut self,
        renewal: &Renewal,
        sent_at: Moment,
        outcome: &Result<Renewed, BackendError>,
        replied: Replied,
        effects: &mut Effects,
    ) {
        let effective = match outcome {
            Ok(Renewed::Renewed) => Effective::Yes,
            Ok(Renewed::NotHeld) => Effective::LeaseGone,
            Err(error) if error.may_have_taken_effect() => Effective::Yes,
            Err(_) => Effective::No,
        };
        self.replied(renewal, effective, replied, effects, |lease, _| {
            lease.renewal_answered(renewal.ttl, sent_at, outcome, replied.now);
        });
    }

    /// The backend replied to an extension.
    pub(in crate::lock) fn extended(
        &mut self,
        extension: &Renewal,
        sent_at: Moment,
        outcome: &Result<Extended, BackendError>,
        replied: Replied,
        effects: &mut Effects,
    ) {
        let effective = match outcome {
            Ok(Extended::Kept { .. }) => Effective::Yes,
            Ok(Extended::Wanted { .. }) => Effective::No,
            Ok(Extended::NotHeld) => Effective::LeaseGone,
            Err(error) if error.may_have_taken_effect() => Effective::Yes,
            Err(_) => Effective::No,
        };
        self.replied(extension, effective, replied, effects, |lease, waiting| {
            lease.extension_answered(extension.ttl, sent_at, outcome, waiting, replied.now);
        });
    }

    /// `update` changes the lease, given the number of those who wait here.
    fn replied(
        &mut self,
        renewal: &Renewal,
        effective: Effective,
        Replied { home, now }: Replied,
        effects: &mut Effects,
        update: impl FnOnce(&mut Lease, usize),
    ) {
        let waiting = self.queue.len();
        let lease = match &mut self.phase {
            Phase::Held(tenure) => Some(&mut tenure.lease),
            Phase::Returning(returning) if !returning.sent => Some(&mut returning.lease),
            _ => None,
        };
        let lease = lease.filter(|lease| lease.is(renewal.lease) && lease.is_in_flight());
        let Some(lease) = lease else {
            // The lane went on without it: this renewal may just have lengthened it.
            if effective == Effective::Yes
                && self.lease_number() != Some(LeaseNumber::of(renewal.lease))
            {
                effects.work.push(Work::Resolve {
                    lease: LeaseNumber::of(renewal.lease),
                    ttl: Span::new(renewal.ttl),
                    home,
                });
            }
            return;
        };
        update(lease, waiting);
        match &mut self.phase {
            Phase::Held(_) if effective == Effective::LeaseGone => self.lose(now, effects),
            // A caller that looked has seen that it is lost: it stays so.
            Phase::Held(tenure) if !tenure.grant.is_held(now) => {
                self.lose_by_clock(home, now, effects);
            }
            Phase::Held(tenure) => tenure.grant.extend(tenure.lease.valid_until()),
            // The release was waiting for this reply.
            _ => self.resume_return(&renewal.key, now, effects),
        }
    }

    /// Begins to ask the backend ahead of need, and returns for how long. `None` if that has become
    /// needless.
    pub(in crate::lock) fn start_extension(
        &mut self,
        number: LeaseNumber,
        now: Moment,
    ) -> Option<Duration> {
        let waits = !self.queue.is_empty();
        match &mut self.phase {
            Phase::Held(tenure)
                if tenure.lease.number() == number && tenure.grant.is_held(now) && waits =>
            {
                tenure.lease.start_extension(now)
            }
            _ => None,
        }
    }
}

/// The task that hands a reply to the lane.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct Replied {
    /// The runtime of the task.
    pub(in crate::lock) home: RuntimeId,
    pub(in crate::lock) now: Moment,
}

/// Whether the backend holds the lease for longer by a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effective {
    Yes,
    No,
    LeaseGone,
}
