//! The reports of the engine, for which it counts and logs.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::backend::{BackendError, Renewal, Renewed};
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::lease::{Grant, HoldId, QueuePosition};
use crate::observe::{self, GrantInfo, Loss, Name, Outcome};

impl Engine {
    /// Reports the end of an acquire.
    #[inline]
    pub(crate) fn acquired(
        &self,
        name: Name,
        ended: Result<(), &Error>,
        waited: Duration,
        queue_position: QueuePosition,
    ) {
        self.tally.acquired(name, Outcome::of(ended), waited);
        if let Err(error) = ended {
            observe::not_acquired(error, waited, queue_position, || self.tally.text(name));
        }
    }

    /// Reports an acquire that its caller dropped.
    pub(crate) fn cancelled(&self, name: Name, waited: Duration) {
        self.tally.acquired(name, Outcome::Cancelled, waited);
        observe::wait_dropped(waited, || self.tally.text(name));
    }

    /// Reports a hold of one key.
    #[inline]
    pub(crate) fn granted(&self, grant: &Grant, hold: HoldId) {
        self.tally.granted(grant.name, grant.via_of(hold));
        if hold == grant.first_hold {
            observe::granted(|| self.info(grant));
        }
    }

    /// Reports the release of the last hold of a grant.
    #[inline]
    pub(crate) fn released(&self, grant: &Grant, now: Moment) {
        let held = now.since(grant.granted_at);
        self.tally.ended(grant.name, held);
        observe::released(|| self.tally.text(grant.name), held);
    }

    /// Reports the loss of a grant that was held.
    #[cold]
    pub(crate) fn lost(&self, grant: &Grant) {
        let now = self.now();
        let held = now.since(grant.granted_at);
        self.tally.ended(grant.name, held);
        if let Some(reason) = grant.lost_reason(now) {
            self.tally.lost(grant.name, reason);
            observe::lost(&Loss {
                grant: self.info(grant),
                reason,
                held,
                overdue: now.since(grant.valid_until()),
            });
        }
    }

    fn info(&self, grant: &Grant) -> GrantInfo<'_> {
        GrantInfo {
            layer: self.tally.text(grant.name),
            mode: grant.mode(),
            via: grant.via_of(grant.first_hold),
            token: grant.token().get(),
            waited: grant.waited.get(),
            span: grant.span,
        }
    }

    /// Reports the replies to the renewals of one command.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        renewals: &[Renewal],
        outcomes: &[Result<Renewed, BackendError>],
    ) {
        let replies = renewals.iter().zip(outcomes);
        let failed = replies.filter_map(|(renewal, reply)| Some((renewal, reply.as_ref().err()?)));
        let failed: Vec<_> = failed.collect();
        let Some((renewal, cause)) = failed.first() else {
            let leases = renewals.iter().map(|renewal| renewal.lease.number());
            self.renewal_outage.succeeded(leases);
            return;
        };
        let lease = renewal.lease.number();
        let now = self.now();
        let left = failed.iter().filter_map(|(renewal, _)| {
            let until = |grant: &Arc<Grant>| grant.valid_until().since(now);
            self.event(&renewal.key, now, |lane, _| lane.holders().map(until).max())
        });
        self.renewal_outage
            .failed(lease, failed.len(), left.min(), *cause);
    }
}
