//! What one guard claimed, as its holder saw it.

use std::time::Duration;

use tokio::time::Instant;

use super::Canary;

/// A fresh grant of one key, from when its holder had it until it had not.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) key: String,
    /// The manager, or whatever else is a process of its own.
    pub(crate) process: usize,
    pub(crate) token: i64,
    pub(crate) lease: Duration,
    /// Whether the watchdog renews it.
    pub(crate) renewed: bool,
    pub(crate) asked: Instant,
    /// When its holder had it; with several keys this one may have been taken long before.
    pub(crate) granted: Instant,
    pub(crate) is_one_of_several: bool,
    /// When the holder began to give it back.
    pub(crate) released: Option<Instant>,
    /// When `lost()` fired.
    pub(crate) told: Option<Instant>,
    /// When a bare timer fired that was set to its end.
    pub(crate) timer: Option<Instant>,
    /// When `is_held()` first said no.
    pub(crate) denied: Option<Instant>,
    /// When `is_held()` last said yes.
    pub(crate) confirmed: Instant,
    /// The ends it was given, each when it was first seen.
    pub(crate) deadlines: Vec<Instant>,
}

/// What a guard allows for clocks that run at different speed.
pub(crate) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

impl Hold {
    /// A hold of which nothing is known but that it begins now.
    pub(super) fn begins(
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
            lease,
            renewed,
            asked: now,
            granted: now,
            is_one_of_several: false,
            released: None,
            told: None,
            timer: None,
            denied: None,
            confirmed: now,
            deadlines: Vec::new(),
        }
    }

    /// The first moment at which the store may have granted it.
    pub(crate) fn taken_after(&self) -> Instant {
        if self.is_one_of_several {
            self.asked
        } else {
            self.granted
        }
    }

    /// When the guard itself said that it ends.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadlines.last().copied().unwrap_or(self.granted)
    }

    /// Up to here the holder had reason to think that it is alone.
    pub(crate) fn end(&self) -> Instant {
        let by_the_clock = self.deadline().max(self.confirmed);
        let told = [self.released, self.told, self.denied];
        told.into_iter().flatten().fold(by_the_clock, Instant::min)
    }

    /// It went before it was given back.
    pub(crate) fn is_lost(&self) -> bool {
        let gone = [self.told, self.denied].into_iter().flatten().min();
        gone.is_some_and(|gone| self.released.is_none_or(|released| gone <= released))
    }

    /// How late it was told: by the clock, and less what this runtime itself was late.
    pub(crate) fn told_late(&self, canary: &Canary) -> Option<(Duration, Duration)> {
        let (deadline, told) = (self.deadline(), self.told?);
        let late = told.saturating_duration_since(deadline);
        let timer = self.timer.map_or(deadline, |timer| timer.min(told));
        let timer_late = timer.saturating_duration_since(deadline);
        let runtime_late = canary.delay(deadline, told).max(timer_late);
        // The way from a timer to its task, and from there to the holder: two turns of the runtime.
        Some((late, late.saturating_sub(2 * runtime_late)))
    }

    /// The end that the guard may claim when somebody else was granted the key at `moment`: that of
    /// a renewal that was sent before.
    pub(crate) fn deadline_as_of(&self, moment: Instant) -> Instant {
        let counted_from = |end: &Instant| (*end + drift(self.lease)).checked_sub(self.lease);
        let sent_before = |end: &&Instant| counted_from(end).is_none_or(|sent| sent <= moment);
        let known = self.deadlines.iter().filter(sent_before);
        known.max().copied().unwrap_or(self.granted)
    }
}

/// An acquire that failed.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) key: String,
    pub(crate) process: usize,
    /// `None` for exactly one try.
    pub(crate) wait: Option<Duration>,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    pub(crate) kind: tower_lock::ErrorKind,
    /// The error, and what it came from.
    pub(crate) why: String,
}
