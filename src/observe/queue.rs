//! The queue across processes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::tally::{Distribution, Histogram};

static TRANSFERS: AtomicU64 = AtomicU64::new(0);
static PASSED_OVER: AtomicU64 = AtomicU64::new(0);
static TRANSFER: Histogram = Histogram::new();

/// Counts the transfer of a free lock to the first waiting process.
pub(crate) fn transferred() {
    TRANSFERS.fetch_add(1, Relaxed);
}

/// Counts waiters that were passed over because their processes have ended or hang.
pub(crate) fn passed_over(waiters: u64) {
    if waiters > 0 {
        PASSED_OVER.fetch_add(waiters, Relaxed);
    }
}

/// Counts that a process confirmed the transfer of a lock by a command, and how long the lock was idle before.
pub(crate) fn confirmed(idle: Duration) {
    TRANSFER.record(idle);
}

/// What the process has counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueTotals {
    pub(crate) transfers: u64,
    pub(crate) passed_over: u64,
    pub(crate) transfer: Distribution,
}

pub(crate) fn totals() -> QueueTotals {
    let mut transfer = Distribution::default();
    TRANSFER.add_to(&mut transfer);
    QueueTotals {
        transfers: TRANSFERS.load(Relaxed),
        passed_over: PASSED_OVER.load(Relaxed),
        transfer,
    }
}

impl QueueTotals {
    /// Returns what was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            transfers: self.transfers - earlier.transfers,
            passed_over: self.passed_over - earlier.passed_over,
            transfer: self.transfer.since(&earlier.transfer),
        }
    }
}
