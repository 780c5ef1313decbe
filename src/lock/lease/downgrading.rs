//! The downgrade of an exclusive lease to a shared one.

use std::time::Duration;

use super::renewal::RenewalState;
use super::{Lease, Wanted};
use crate::backend::{Mode, Renewed};
use crate::lock::clock::Moment;

impl Lease {
    /// Begins a downgrade, and returns the TTL to request. Renewals and hand-offs wait for the reply. A fixed lease keeps
    /// its end.
    pub(crate) fn start_downgrade(&mut self, now: Moment) -> Duration {
        self.renewal = RenewalState::SENT;
        self.is_downgrading = true;
        self.end_hand_offs();
        if self.wanted == Wanted::Nothing {
            self.ttl = self.valid_until.span_since(now);
        }
        self.ttl.get()
    }

    /// Applies the reply to a downgrade for `ttl` that was sent at `sent_at`: the lease is shared, under a fresh counter.
    pub(crate) fn downgraded(&mut self, counter: u64, ttl: Duration, sent_at: Moment, now: Moment) {
        self.is_downgrading = false;
        self.mode = Mode::Shared;
        self.counter = counter;
        self.hand_offs = None;
        self.renewal_answered(ttl, sent_at, &Ok(Renewed::Renewed), now);
    }

    /// Applies the reply to a downgrade that changed nothing. The next holder needs a fresh counter.
    pub(crate) fn downgrade_refused(&mut self, now: Moment) {
        self.is_downgrading = false;
        self.renewal = RenewalState::Due(now);
    }
}
