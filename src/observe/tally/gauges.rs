//! What a look at all locks of a manager finds.

use std::time::Duration;

use super::names::Name;
use crate::mode::Mode;

/// The present state of one manager, which the engine reads for a report.
#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    /// Owners that hold a key, by the number of the layer name and by the mode.
    pub(crate) held: [[usize; Mode::COUNT]; Name::COUNT],
    /// Acquires that wait, by the number of the layer name.
    pub(crate) waiting: [usize; Name::COUNT],
    pub(crate) waiting_limit: usize,
    pub(crate) unreleased: usize,
    pub(crate) kept: usize,
    pub(crate) oldest_hold: Duration,
    pub(crate) oldest_wait: Duration,
    pub(crate) watchdog_lag: Duration,
}

impl Gauges {
    /// Returns the part of the waiting limit that is used.
    pub(crate) fn waiting_ratio(&self) -> f64 {
        let waiting: usize = self.waiting.iter().sum();
        waiting as f64 / self.waiting_limit.max(1) as f64
    }
}
