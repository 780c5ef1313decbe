//! The counts of a tally at one moment.

use super::histogram::Distribution;
use crate::observe::outcome::{Forced, Outcome, Permit, Reply, WokenBy};
use crate::observe::via::{LostReason, Via};

/// What a manager, or one layer name of it, has counted since it was created.
///
/// Counts that are written concurrently may or may not be included.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    /// Acquires by [`Outcome`].
    pub(crate) outcomes: [u64; Outcome::COUNT],
    /// Granted keys by [`Via`].
    pub(crate) grants: [u64; Via::COUNT],
    /// Lost keys by [`LostReason`].
    pub(crate) lost: [u64; LostReason::COUNT],
    /// The waits of granted acquires.
    pub(crate) wait: Distribution,
    /// The waits of rejected acquires.
    pub(crate) rejected: Distribution,
    /// The waits of acquires that their callers dropped.
    pub(crate) cancelled: Distribution,
    /// The holds of keys that have ended.
    pub(crate) hold: Distribution,
}

/// What one manager has counted without a layer name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TrafficTotals {
    pub(crate) renewals: [u64; Reply::COUNT],
    pub(crate) releases: [u64; Reply::COUNT],
    pub(crate) wakeups: [u64; WokenBy::COUNT],
    pub(crate) force_releases: [u64; Forced::COUNT],
    pub(crate) unlocked: [u64; Permit::COUNT],
}

impl Totals {
    pub(crate) fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    pub(crate) fn grants(&self, via: Via) -> u64 {
        self.grants[via as usize]
    }

    pub(crate) fn lost(&self, reason: LostReason) -> u64 {
        self.lost[reason as usize]
    }

    /// Returns the number of acquires that were neither granted nor dropped.
    pub(crate) fn rejections(&self) -> u64 {
        let all: u64 = self.outcomes.iter().sum();
        all - self.outcome(Outcome::Granted) - self.outcome(Outcome::Cancelled)
    }

    /// Returns what was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            outcomes: difference(self.outcomes, earlier.outcomes),
            grants: difference(self.grants, earlier.grants),
            lost: difference(self.lost, earlier.lost),
            wait: self.wait.since(&earlier.wait),
            rejected: self.rejected.since(&earlier.rejected),
            cancelled: self.cancelled.since(&earlier.cancelled),
            hold: self.hold.since(&earlier.hold),
        }
    }
}

impl TrafficTotals {
    pub(crate) fn renewals(&self, reply: Reply) -> u64 {
        self.renewals[reply as usize]
    }

    pub(crate) fn releases(&self, reply: Reply) -> u64 {
        self.releases[reply as usize]
    }

    pub(crate) fn wakeups(&self, by: WokenBy) -> u64 {
        self.wakeups[by as usize]
    }

    /// Returns what was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            renewals: difference(self.renewals, earlier.renewals),
            releases: difference(self.releases, earlier.releases),
            wakeups: difference(self.wakeups, earlier.wakeups),
            force_releases: difference(self.force_releases, earlier.force_releases),
            unlocked: difference(self.unlocked, earlier.unlocked),
        }
    }
}

fn difference<const N: usize>(now: [u64; N], earlier: [u64; N]) -> [u64; N] {
    std::array::from_fn(|at| now[at].saturating_sub(earlier[at]))
}
