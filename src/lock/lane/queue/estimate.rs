//! The time until the lock is free for a further acquire.
//!
//! One grant to a waiter takes as long as the hold before it, and where other processes have their turns, as long
//! as these. So the pace shows how long a further acquire would wait, whatever the reason.

use std::time::Duration;

use super::pace::{Estimate, Pace};
use crate::lock::clock::Moment;
use crate::lock::lane::{Contending, Lane, LastReply, Phase};

/// The assumed time of one grant before the first one.
const UNKNOWN: Duration = Duration::from_millis(100);

/// The time for which an estimate serves further rejections, so that a full queue rejects cheaply.
const SERVES: Duration = Duration::from_millis(10);

impl Lane {
    /// Starts to observe the pace of an empty queue, which the caller adds a waiter to.
    pub(crate) fn begin_queue(&mut self, now: Moment) {
        let since = (self.held_lease()).map_or(now, |held_lease| held_lease.grant().granted_at);
        self.queue.pace_mut().last = Some(since);
    }

    /// Estimates when the lock is free for a further acquire: after the holder and the waiters, each of which leaves
    /// at its deadline at the latest.
    pub(crate) fn free_in(&mut self, now: Moment) -> Duration {
        let waiters = self.queue.len();
        let earlier = self.queue.pace().and_then(|pace| pace.estimate);
        if let Some(earlier) = earlier
            && now < earlier.until
            && (earlier.waiters / 2..=earlier.waiters * 2).contains(&waiters)
        {
            return earlier.free_at.since(now);
        }
        let free_at = self.free_at(now);
        if waiters > 0 {
            self.queue.pace_mut().estimate = Some(Estimate {
                free_at,
                waiters,
                until: now + SERVES,
            });
        }
        free_at.since(now)
    }

    pub(crate) fn free_at(&self, now: Moment) -> Moment {
        let pace = self.queue.pace();
        let (held_since, lease) = match &self.phase {
            Phase::Held(held_lease) => (
                held_lease.grant().granted_at,
                held_lease.valid_until().since(now),
            ),
            Phase::Contending(Contending {
                seen: LastReply::Busy(until),
                ..
            }) => (
                pace.and_then(|pace| pace.last).unwrap_or(now),
                until.since(now),
            ),
            _ => (now, Duration::ZERO),
        };
        let elapsed = now.since(held_since);
        let mean = pace.and_then(Pace::mean);
        let mean = mean.unwrap_or_else(|| elapsed.max(UNKNOWN));
        // A hold that exceeds the mean is expected to last as long again.
        let left = match mean.checked_sub(elapsed) {
            Some(left) if !left.is_zero() => left,
            _ => elapsed,
        };
        let holder_ends = now + left.min(lease);
        self.queue.iter().fold(holder_ends, |free_at, waiter| {
            if waiter.claim.deadline.outlasts(free_at) {
                free_at + mean
            } else {
                free_at
            }
        })
    }
}
