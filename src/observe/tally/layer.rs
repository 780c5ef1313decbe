//! The counts of one layer name.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::histogram::Histogram;
use super::striped::Striped;
use super::totals::Totals;
use crate::observe::outcome::Outcome;
use crate::observe::via::{LostReason, Via};

#[derive(Debug, Default)]
pub(super) struct LayerTally {
    pub(super) grants: Striped<Grants>,
    failures: Striped<Failures>,
    pub(super) lost: [AtomicU64; LostReason::COUNT],
}

/// What each grant counts, about 4 KiB.
#[derive(Debug, Default)]
pub(super) struct Grants {
    pub(super) via: [AtomicU64; Via::COUNT],
    wait: Histogram,
    pub(super) hold: Histogram,
}

/// What each acquire without a grant counts.
#[derive(Debug, Default)]
struct Failures {
    outcomes: [AtomicU64; Outcome::COUNT],
    rejected: Histogram,
    cancelled: Histogram,
}

impl LayerTally {
    #[inline]
    pub(super) fn acquired(&self, outcome: Outcome, waited: Duration) {
        // The histogram counts the granted ones.
        if outcome == Outcome::Granted {
            self.grants.own().wait.record(waited);
        } else {
            self.failed(outcome, waited);
        }
    }

    #[cold]
    fn failed(&self, outcome: Outcome, waited: Duration) {
        let failures = self.failures.own();
        failures.outcomes[outcome as usize].fetch_add(1, Relaxed);
        match outcome {
            Outcome::Cancelled => failures.cancelled.record(waited),
            _ => failures.rejected.record(waited),
        }
    }

    pub(super) fn add_to(&self, totals: &mut Totals) {
        for stripe in self.grants.iter() {
            add(&mut totals.grants, &stripe.via);
            stripe.wait.add_to(&mut totals.wait);
            stripe.hold.add_to(&mut totals.hold);
        }
        totals.outcomes[Outcome::Granted as usize] = totals.wait.count();
        for stripe in self.failures.iter() {
            add(&mut totals.outcomes, &stripe.outcomes);
            stripe.rejected.add_to(&mut totals.rejected);
            stripe.cancelled.add_to(&mut totals.cancelled);
        }
        add(&mut totals.lost, &self.lost);
    }
}

pub(super) fn add<const N: usize>(totals: &mut [u64; N], counts: &[AtomicU64; N]) {
    for (total, count) in totals.iter_mut().zip(counts) {
        *total += count.load(Relaxed);
    }
}
