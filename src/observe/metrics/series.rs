//! Series that follow a count of their own.
//!
//! An exporter with an idle timeout removes a series that nothing writes for that time, and drops what its handle
//! receives afterwards. Each report therefore writes counters and gauges, also without a change. A histogram cannot be
//! written without a sample, so its handle is looked up for each report with samples.

use metrics::{Counter, Gauge, Label, counter, gauge, histogram};

use crate::observe::tally::Distribution;

/// A counter that follows a total.
pub(super) struct CounterSeries {
    counter: Counter,
    reported: u64,
}

impl CounterSeries {
    pub(super) fn new(name: &'static str, labels: Vec<Label>) -> Self {
        Self {
            counter: counter!(name, labels),
            reported: 0,
        }
    }

    pub(super) fn follow(&mut self, total: u64) {
        let added = total.saturating_sub(self.reported);
        self.counter.increment(added);
        self.reported += added;
    }

    pub(super) fn add(&mut self, added: u64) {
        self.follow(self.reported + added);
    }
}

/// A part of a gauge, which is the sum over all managers.
pub(super) struct GaugeSeries {
    gauge: Gauge,
    reported: f64,
}

impl GaugeSeries {
    pub(super) fn new(name: &'static str, labels: Vec<Label>) -> Self {
        let gauge = gauge!(name, labels);
        // Registration alone does not create the series in each recorder.
        gauge.increment(0.0);
        Self {
            gauge,
            reported: 0.0,
        }
    }

    /// Sets the part of this manager.
    pub(super) fn follow(&mut self, value: usize) {
        let value = value as f64;
        self.gauge.increment(value - self.reported);
        self.reported = value;
    }
}

impl Drop for GaugeSeries {
    fn drop(&mut self) {
        self.follow(0);
    }
}

/// A histogram that follows a distribution.
pub(super) struct HistogramSeries {
    name: &'static str,
    labels: Vec<Label>,
    reported: Distribution,
}

impl HistogramSeries {
    pub(super) fn new(name: &'static str, labels: Vec<Label>) -> Self {
        let _registered = histogram!(name, labels.clone());
        Self {
            name,
            labels,
            reported: Distribution::default(),
        }
    }

    pub(super) fn follow(&mut self, total: Distribution) {
        self.record(&total.since(&self.reported));
        self.reported = total;
    }

    pub(super) fn record(&self, added: &Distribution) {
        let mut added = added.counted().peekable();
        if added.peek().is_none() {
            return;
        }
        let histogram = histogram!(self.name, self.labels.clone());
        for (duration, count) in added {
            // A recorder stores each sample, so a number beyond this does not fit into memory.
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            histogram.record_many(duration.as_secs_f64(), count);
        }
    }
}

/// Returns one series per value of a label.
pub(super) fn each<L: Copy, S, const N: usize>(values: &[L], series: impl Fn(L) -> S) -> [S; N] {
    std::array::from_fn(|at| series(values[at]))
}
