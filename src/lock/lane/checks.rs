//! The events of the watchdog: due and overdue work.

use std::sync::Arc;
use std::time::Duration;

use super::{Contender, Contending, Effects, Lane, Phase, Returning, Sent, Work};
use crate::lock::clock::Moment;
use crate::lock::lease::LeaseNumber;

/// The time after which home takes a first attempt that its acquire does not poll, if others wait.
pub(crate) const UNPOLLED: Duration = Duration::from_millis(8);

impl Lane {
    /// Returns when the watchdog has to check the lane.
    #[inline(always)]
    pub(crate) fn next_check(&self) -> Option<Moment> {
        let own = match &self.phase {
            Phase::Idle => return None,
            Phase::Yielding { until } => Some(*until),
            Phase::Held(held_lease) => Some(held_lease.next_check()),
            Phase::Returning(returning) => Some(returning.next_check()),
            // An acquire loop runs beside the watchdog.
            Phase::Contending(_) => self.next_check_of_first(),
        };
        let deadline = self.queue.deadline();
        own.map_or(deadline, |own| {
            Some(deadline.map_or(own, |deadline| deadline.min(own)))
        })
    }

    /// Returns `true` if a renewal that is due later may join one that is sent now.
    pub(crate) fn renews_early(&self, now: Moment) -> bool {
        (self.held_lease()).is_some_and(|held_lease| held_lease.lease.renews_early(now))
    }

    /// Checks the lane. Returns the lease to renew, and for which TTL.
    pub(crate) fn check(&mut self, effects: &mut Effects) -> Option<(LeaseNumber, Duration)> {
        self.expire(effects);
        self.reject_late(effects);
        let checks_first = self
            .next_check_of_first()
            .is_some_and(|at| at <= effects.now);
        match &mut self.phase {
            Phase::Held(held_lease) => {
                let ttl = held_lease.lease.start_renewal(effects.now)?;
                Some((held_lease.lease.number(), ttl))
            }
            Phase::Returning(returning) if matches!(returning.sent, Sent::Once { due, .. } if due <= effects.now) =>
            {
                returning.sent = Sent::Twice;
                let outgoing = returning.outgoing(effects.now);
                effects.work.push(Work::ReturnAgain(outgoing));
                None
            }
            Phase::Returning(returning) if matches!(returning.sent, Sent::Kept { until } if until <= effects.now) =>
            {
                returning.surrender(effects);
                None
            }
            Phase::Contending(Contending {
                contender: Contender::FirstAttempt(first),
                ..
            }) if checks_first => {
                if first.due <= effects.now {
                    self.replace_task(effects);
                    effects.left_attempt = true;
                    return None;
                }
                // Its acquire may poll it at this moment. If the acquire has left, a task drives it.
                let waiter = self.queue.attempting.as_ref();
                let unpolled = waiter.and_then(|it| Some((Arc::clone(it), it.take_attempt()?)));
                first.unpolled_at = match &unpolled {
                    Some(_) => None,
                    None => first.unpolled_at.map(|_| effects.now + UNPOLLED),
                };
                if let Some((waiter, attempt)) = unpolled {
                    effects.work.push(Work::FinishAttempt(waiter, attempt));
                }
                None
            }
            _ => None,
        }
    }

    /// Returns when the watchdog checks the first attempt. While only its own acquire waits, it goes on until the end of
    /// that wait.
    fn next_check_of_first(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Contending(Contending {
                contender: Contender::FirstAttempt(first),
                ..
            }) if self.queue.queue_len() > 0 || !self.queue.is_attempting() => {
                Some((first.unpolled_at).map_or(first.due, |at| at.min(first.due)))
            }
            _ => None,
        }
    }
}

impl Returning {
    fn next_check(&self) -> Moment {
        match self.sent {
            Sent::Once { due: next, .. } | Sent::Kept { until: next } => next.min(self.next_end()),
            Sent::Never | Sent::Twice => self.next_end(),
        }
    }
}
