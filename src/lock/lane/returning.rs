//! The way of a lease back to the backend: the events of the releaser.

use super::{Lane, Phase, Tenure};
use crate::LockKey;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::lock::moment::Moment;
use crate::lock::order::{Next, Report, Return, Surrender};

impl Lane {
    /// What the releaser sends now. `None` if the lease was taken back, or a renewal of it is on
    /// the wire.
    pub(in crate::lock) fn take_return(&mut self, now: Moment) -> Option<Return> {
        let Phase::Surrendered(Surrender { lease, .. }) = &self.phase else {
            return None;
        };
        if lease.is_renewing() {
            return None;
        }
        let sent = Phase::Returning {
            number: lease.number(),
            until: lease.expires_at(),
        };
        let Phase::Surrendered(surrender) = std::mem::replace(&mut self.phase, sent) else {
            return None;
        };
        Some(if self.wants(&surrender.lease, now) {
            Return::Pass(surrender)
        } else {
            Return::Release(surrender)
        })
    }

    /// Whether the first in the queue can go on with this lease if the backend agrees.
    fn wants(&self, lease: &Lease, now: Moment) -> bool {
        let first = self.queue.values().next();
        first.is_some_and(|first| lease.is_renewed_for(first.claim.terms, now))
    }

    fn returns(&self, lease: LeaseNumber) -> bool {
        matches!(&self.phase, Phase::Returning { number, .. } if *number == lease)
    }

    /// The lease is with the backend, or given up: the next in the queue contends.
    pub(in crate::lock) fn returned(&mut self, number: LeaseNumber, passed: Option<u32>) -> Next {
        if self.returns(number) {
            self.contend_or_idle(passed)
        } else {
            Next::Nothing
        }
    }

    /// Nobody else wanted the lease: it goes on here, under a fresh counter, and whoever waits for the
    /// release is to hear that the lock is given up; or it goes back, if nobody here wants it any more.
    ///
    /// # Errors
    ///
    /// The lease, if the lane has gone on without it.
    pub(in crate::lock) fn kept(
        &mut self,
        key: &LockKey,
        Surrender { lease, report }: Surrender,
        now: Moment,
    ) -> Result<(Option<Report>, Next), Lease> {
        if !self.returns(lease.number()) {
            return Err(lease);
        }
        Ok(if self.wants(&lease, now) {
            let next = self.hand_to_first(|claim| Tenure::begin(key, lease, claim, now));
            (report, next)
        } else {
            (None, self.give_back(lease, report))
        })
    }
}
