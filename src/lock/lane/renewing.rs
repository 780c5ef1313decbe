//! How a lease is made to last: the events of the watchdog, and of what is asked ahead of need.

use std::time::Duration;

use super::{Lane, Phase, Tenure};
use crate::LockKey;
use crate::backend::{BackendError, Extended, Renewal, Renewed};
use crate::lock::lease::{Lease, LeaseNumber};
use crate::lock::moment::Moment;
use crate::lock::order::{Answered, Due, Surrender};

impl Lane {
    pub(in crate::lock) fn due(&mut self, now: Moment) -> Due {
        if let Some(until) = self.returned_by() {
            if now < until {
                return Due::Later(until);
            }
            let report = match &mut self.phase {
                Phase::Surrendered(surrender) => surrender.report.take(),
                _ => None,
            };
            return Due::Forsaken(report, self.contend_or_idle(None));
        }
        let Phase::Held(tenure) = &mut self.phase else {
            return Due::Never;
        };
        let valid_until = tenure.grant.valid_until();
        if now >= valid_until {
            return match std::mem::take(&mut self.phase) {
                Phase::Held(Tenure { lease, grant }) => {
                    // Given back all the same: the backend may hold it a little longer.
                    Due::Lost(grant, self.give_back(lease, None))
                }
                _ => Due::Never,
            };
        }
        match tenure.lease.start_renewal(now) {
            Some(ttl) => Due::Renew(tenure.lease.number(), ttl, valid_until),
            None => Due::Later(tenure.next_look()),
        }
    }

    /// Whether a renewal that was due is still to be sent.
    pub(in crate::lock) fn wants_renewal(&self, renewal: &Renewal, now: Moment) -> bool {
        matches!(&self.phase, Phase::Held(tenure)
            if tenure.lease.is(renewal.lease) && now < tenure.grant.valid_until())
    }

    /// A renewal was answered.
    pub(in crate::lock) fn renewed(
        &mut self,
        renewal: &Renewal,
        sent_at: Moment,
        outcome: &Result<Renewed, BackendError>,
        now: Moment,
    ) -> Answered {
        let is_gone = matches!(outcome, Ok(Renewed::NotHeld));
        self.answered(renewal, is_gone, now, |lease, _| {
            lease.renewal_answered(renewal, sent_at, outcome, now);
        })
    }

    /// `answer` tells it to the lease, with the number of those who wait here.
    fn answered(
        &mut self,
        renewal: &Renewal,
        is_gone: bool,
        now: Moment,
        answer: impl FnOnce(&mut Lease, usize),
    ) -> Answered {
        let waiting = self.queue.len();
        let lease = match &mut self.phase {
            Phase::Held(tenure) => Some(&mut tenure.lease),
            Phase::Surrendered(surrender) => Some(&mut surrender.lease),
            _ => None,
        };
        let Some(lease) = lease.filter(|lease| lease.is(renewal.lease)) else {
            return Answered::Stale;
        };
        answer(lease, waiting);
        match &mut self.phase {
            // Whoever looked has been told that it is lost: it stays so.
            Phase::Held(tenure) if !is_gone && !tenure.grant.is_held(now) => {
                match std::mem::take(&mut self.phase) {
                    Phase::Held(Tenure { lease, grant }) => {
                        Answered::Lost(grant, self.give_back(lease, None))
                    }
                    _ => Answered::Stale,
                }
            }
            Phase::Held(_) if is_gone => match self.lose() {
                (Some(grant), next) => Answered::Lost(grant, next),
                (None, _) => Answered::Stale,
            },
            Phase::Held(tenure) => {
                tenure.grant.extend(tenure.lease.valid_until());
                Answered::Held(tenure.next_look())
            }
            // The release was waiting for this answer.
            _ => self.resume(&renewal.key, now),
        }
    }

    /// The lease may go back now, unless the next in the queue can have it.
    fn resume(&mut self, key: &LockKey, now: Moment) -> Answered {
        let next = self.queue.values().next();
        match std::mem::take(&mut self.phase) {
            Phase::Surrendered(Surrender { lease, report })
                if next.is_some_and(|it| lease.may_pass_to(it.claim.terms, now)) =>
            {
                let handed_on = self.hand_to_first(|it| Tenure::handed_on(key, lease, it, now));
                Answered::HandedOn(report, handed_on)
            }
            phase => {
                self.phase = phase;
                Answered::Returning
            }
        }
    }

    /// The backend is asked ahead of need, for so long. `None` if that has become needless.
    pub(in crate::lock) fn start_extension(
        &mut self,
        number: LeaseNumber,
        now: Moment,
    ) -> Option<Duration> {
        match &mut self.phase {
            Phase::Held(tenure)
                if tenure.lease.number() == number
                    && tenure.grant.is_held(now)
                    && !self.queue.is_empty() =>
            {
                tenure.lease.start_extension()
            }
            _ => None,
        }
    }

    /// That was answered.
    pub(in crate::lock) fn extended(
        &mut self,
        extension: &Renewal,
        sent_at: Moment,
        outcome: &Result<Extended, BackendError>,
        now: Moment,
    ) -> Answered {
        let is_gone = matches!(outcome, Ok(Extended::NotHeld));
        self.answered(extension, is_gone, now, |lease, waiting| {
            lease.extension_answered(extension, sent_at, outcome, waiting, now);
        })
    }
}
