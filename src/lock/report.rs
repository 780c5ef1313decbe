//! The reports of the engine, for which it counts and logs.

use std::sync::Arc;
use std::time::Duration;

use super::claim::HoldId;
use super::clock::Moment;
use super::engine::Engine;
use super::grant::Grant;
use crate::Error;
use crate::observe::{self, Loss, Name, Outcome};

impl Engine {
    /// Reports the end of an acquire.
    #[inline]
    pub(super) fn acquired(
        self: &Arc<Self>,
        name: Name,
        ended: Result<(), &Error>,
        waited: Duration,
    ) {
        self.count(name, Outcome::of(ended), waited);
        if let Err(error) = ended {
            observe::not_acquired(error);
        }
    }

    /// Reports an acquire that its caller dropped.
    pub(super) fn cancelled(self: &Arc<Self>, name: Name, waited: Duration) {
        self.count(name, Outcome::Cancelled, waited);
    }

    #[inline]
    fn count(self: &Arc<Self>, name: Name, outcome: Outcome, waited: Duration) {
        self.tally.acquired(name, outcome, waited);
        #[cfg(feature = "metrics")]
        if !self.tally.is_reported() {
            self.report_regularly();
        }
    }

    /// Reports a hold of one key.
    #[inline]
    pub(super) fn granted(&self, grant: &Grant, hold: HoldId) {
        self.tally.granted(grant.name(), grant.via_of(hold));
    }

    /// Reports the release of the last hold of a grant.
    #[inline]
    pub(super) fn hold_ended(&self, grant: &Grant, now: Moment) {
        self.tally
            .ended(grant.name(), now.since(grant.granted_at()));
    }

    /// Reports the loss of a grant that was held.
    #[cold]
    pub(super) fn lost(&self, grant: &Grant) {
        let now = Moment::now();
        if let Some(reason) = grant.lost_reason(now) {
            self.tally.lost(grant.name(), reason);
            observe::lost(&Loss {
                layer: self.tally.text(grant.name()),
                reason,
                via: grant.via_of(grant.first_hold()),
                token: grant.token().get(),
                waited: grant.waited(),
                held: now.since(grant.granted_at()),
                overdue: now.since(grant.valid_until()),
                span: grant.span(),
            });
        }
        self.hold_ended(grant, now);
    }
}
