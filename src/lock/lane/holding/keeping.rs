//! The events of a kept lease, which stays here after the end of its last hold: its key comes back to this process often.

use crate::lock::clock::{Moment, Span};
use crate::lock::lane::{Effects, Few, Lane, Phase, Returning, Sent, Work};
use crate::lock::lease::{Lease, LeaseNumber, Terms};
use crate::observe::Via;

impl Lane {
    /// Keeps the lease that this event has surrendered, for a turn of this length. After the turn, without tokens, or if
    /// other processes may wait, the backend decides whether it is kept.
    pub(crate) fn keep(&mut self, length: Span, effects: &mut Effects) {
        let Phase::Returning(returning) = &mut self.phase else {
            return;
        };
        let Some(turn_ends) = returning.lease.keeps_until(length) else {
            return;
        };
        // A waiter whom the lease did not pass to.
        if !self.queue.is_empty() || returning.sent != Sent::Never {
            return;
        }
        let until = effects.now + length;
        returning.lease.keep_until(Some(until));
        if returning.lease.may_stay(turn_ends, effects.now) {
            // A key that did not come back for half of its time is released at the end of the turn.
            if effects.now + length / 2 <= turn_ends {
                returning.lease.keep_until(None);
            }
            returning.stay(turn_ends.min(until), effects);
        } else if turn_ends <= effects.now {
            // The backend decides before the next acquire, however early that comes.
            returning.lease.end_hand_offs();
        }
    }

    /// Keeps a lease that the backend has kept, for the rest of the time.
    pub(crate) fn keep_on(&mut self, lease: Lease, until: Moment, effects: &mut Effects) {
        self.begin_return(lease, None, effects);
        if let Phase::Returning(returning) = &mut self.phase {
            returning.stay(until, effects);
        }
    }

    /// Surrenders a kept lease, and keeps none whose return is in flight.
    pub(crate) fn end_keep(&mut self, effects: &mut Effects) {
        if let Phase::Returning(returning) = &mut self.phase {
            returning.lease.keep_until(None);
            returning.surrender(effects);
        }
    }

    /// Returns the lease that is kept.
    pub(crate) fn kept_lease(&self) -> Option<LeaseNumber> {
        match &self.phase {
            Phase::Returning(returning) => returning.is_kept().then(|| returning.lease.number()),
            _ => None,
        }
    }
}

impl Returning {
    fn is_kept(&self) -> bool {
        matches!(self.sent, Sent::Kept { .. })
    }

    /// Keeps a lease that this event has surrendered.
    fn stay(&mut self, until: Moment, effects: &mut Effects) {
        // The release is the only work.
        effects.work = Few::Empty;
        self.sent = Sent::Kept { until };
    }

    /// Returns how an acquire with `terms` takes the lease back, or `None` if it may not.
    pub(crate) fn taken_back(&self, terms: Terms, now: Moment) -> Option<Via> {
        let (passes, via) = match self.sent {
            Sent::Never => (self.lease.may_pass_to(terms, now), Via::Reclaimed),
            Sent::Kept { until } => (self.lease.may_pass_until(until, terms, now), Via::Kept),
            Sent::Once { .. } | Sent::Twice => return None,
        };
        passes.then_some(via)
    }

    /// Leaves a kept lease to the releaser.
    pub(crate) fn surrender(&mut self, effects: &mut Effects) {
        if self.is_kept() {
            self.sent = Sent::Never;
            effects.work.push(Work::Return);
        }
    }
}
