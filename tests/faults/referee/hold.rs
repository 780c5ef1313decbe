//! The claim of one guard, as its holder observed it.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::backend::Mode;

use super::StallDetector;

/// A fresh grant of one key, from its acquire to its end, as its holder observed them.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) key: String,
    /// The manager, or any other process.
    pub(crate) process: usize,
    pub(crate) token: i64,
    pub(crate) mode: Mode,
    /// The limit under which a permit was granted, or 0 if that is unknown.
    pub(crate) limit: u32,
    pub(crate) lease: Duration,
    /// `true` if the watchdog renews the lease.
    pub(crate) renewed: bool,
    pub(crate) asked: Instant,
    /// The time at which its holder acquired it. With several keys, this one may have been granted long
    /// before.
    pub(crate) granted: Instant,
    pub(crate) is_one_of_several: bool,
    /// The time at which the holder began to release it.
    pub(crate) released: Option<Instant>,
    /// The time at which `lost()` completed.
    pub(crate) reported: Option<Instant>,
    /// The time at which a bare timer for its end completed.
    pub(crate) timer: Option<Instant>,
    /// The time at which `is_held()` first returned `false`.
    pub(crate) denied: Option<Instant>,
    /// The time at which `is_held()` last returned `true`.
    pub(crate) confirmed: Instant,
    /// The expiries that it had, each with the time of its first observation.
    pub(crate) deadlines: Vec<Instant>,
}

/// The allowance of a guard for clocks of different speed.
pub(crate) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

impl Hold {
    /// Creates a hold that begins now.
    pub(crate) fn begins(
        key: &str,
        process: usize,
        token: i64,
        (lease, renewed): (Duration, bool),
    ) -> Self {
        let now = Instant::now();
        Self {
            key: key.to_owned(),
            process,
            token,
            mode: Mode::Exclusive,
            limit: 0,
            lease,
            renewed,
            asked: now,
            granted: now,
            is_one_of_several: false,
            released: None,
            reported: None,
            timer: None,
            denied: None,
            confirmed: now,
            deadlines: Vec::new(),
        }
    }

    /// Returns `true` if both may hold the key at the same time, under tokens without an order.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        self.mode == other.mode && self.mode != Mode::Exclusive
    }

    /// Returns the earliest time at which the store may have granted it.
    pub(crate) fn taken_after(&self) -> Instant {
        if self.is_one_of_several {
            self.asked
        } else {
            self.granted
        }
    }

    /// Returns the expiry that the guard itself reported.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadlines.last().copied().unwrap_or(self.granted)
    }

    /// Returns the time from which its lease counted when it was granted.
    pub(crate) fn lease_from(&self) -> Instant {
        let Some(end) = self.deadlines.first() else {
            return self.granted;
        };
        let from = (*end + drift(self.lease)).checked_sub(self.lease);
        from.unwrap_or(self.granted)
    }

    /// Returns the time until which the holder could rely on the lock.
    pub(crate) fn end(&self) -> Instant {
        let by_the_clock = self.deadline().max(self.confirmed);
        let reported = [self.released, self.reported, self.denied];
        reported
            .into_iter()
            .flatten()
            .fold(by_the_clock, Instant::min)
    }

    /// Returns `true` if the lock was lost before its release.
    pub(crate) fn is_lost(&self) -> bool {
        let gone = [self.reported, self.denied].into_iter().flatten().min();
        gone.is_some_and(|gone| self.released.is_none_or(|released| gone <= released))
    }

    /// Returns how late the loss was reported: by the clock, and less the delays of this runtime.
    pub(crate) fn reported_late(
        &self,
        stall_detector: &StallDetector,
    ) -> Option<(Duration, Duration)> {
        let (deadline, reported) = (self.deadline(), self.reported?);
        let late = reported.saturating_duration_since(deadline);
        let timer = self.timer.map_or(deadline, |timer| timer.min(reported));
        let timer_late = timer.saturating_duration_since(deadline);
        let runtime_late = stall_detector.delay(deadline, reported).max(timer_late);
        // A notification takes two turns of the runtime: from the timer to its task, and from the task to
        // the holder.
        Some((late, late.saturating_sub(2 * runtime_late)))
    }

    /// Returns the expiry that the guard may claim when another process was granted the key at `moment`:
    /// the one of a renewal that was sent before.
    pub(crate) fn deadline_as_of(&self, moment: Instant) -> Instant {
        let counted_from = |end: &Instant| (*end + drift(self.lease)).checked_sub(self.lease);
        let sent_before = |end: &&Instant| counted_from(end).is_none_or(|sent| sent <= moment);
        let known = self.deadlines.iter().filter(sent_before);
        known.max().copied().unwrap_or(self.granted)
    }
}

/// A failed acquire.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) key: String,
    pub(crate) process: usize,
    /// The wait, or `None` for a single attempt.
    pub(crate) wait: Option<Duration>,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    pub(crate) kind: tower_lock::ErrorKind,
    /// The error and its sources.
    pub(crate) why: String,
}
