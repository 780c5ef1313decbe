//! The figures of one contender under contention.

use std::time::Duration;

use crate::table::Series;
use crate::team::Report;
use crate::waits::Waits;

pub(crate) struct Contention {
    window: Duration,
    /// Grants per second.
    pub(crate) grants: Series,
    pub(crate) waits: Waits,
    /// The longest wait divided by the median wait.
    pub(crate) spread: Series,
    /// The longest wait in milliseconds.
    pub(crate) longest: Series,
}

impl Contention {
    pub(crate) fn over(window: Duration) -> Self {
        Self {
            window,
            grants: Series::default(),
            waits: Waits::default(),
            spread: Series::default(),
            longest: Series::default(),
        }
    }

    pub(crate) fn add(&mut self, report: &Report) {
        let waits = report.waits();
        self.grants
            .add(report.grants() as f64 / self.window.as_secs_f64());
        self.spread.add(waits.longest() / waits.at(0.5));
        self.longest.add(waits.longest() * 1e3);
        self.waits.add(&waits);
    }

    pub(crate) fn longest_wait(&self) -> String {
        let (longest, spread) = (self.longest.text(1, "ms"), self.spread.text(0, ""));
        format!("longest wait {longest}, {spread} × the median")
    }
}
