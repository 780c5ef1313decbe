//! Reports to the series of the present recorder.
//!
//! An exporter with an idle timeout removes a series that nothing writes for that time, and drops what its handle
//! receives afterwards. Each report therefore looks up the handles of counters and histograms, and writes counters and
//! gauges also without a change. A histogram cannot be written without a sample.

use metrics::{Gauge, Label, counter, gauge, histogram};

use crate::observe::tally::Distribution;

/// Adds to one counter for each value of a label.
pub(super) fn count_each<L: Copy>(
    name: &'static str,
    (label, values, text): (&'static str, &[L], fn(L) -> &'static str),
    more: &[Label],
    added: &[u64],
) {
    for (value, added) in values.iter().zip(added) {
        let label = Label::from_static_parts(label, text(*value));
        counter!(name, with(label, more)).increment(*added);
    }
}

/// Adds samples to a histogram. One that is new is registered without samples too.
pub(super) fn record(name: &'static str, labels: Vec<Label>, added: &Distribution, is_new: bool) {
    let mut added = added.counted().peekable();
    if added.peek().is_none() && !is_new {
        return;
    }
    let histogram = histogram!(name, labels);
    for (duration, count) in added {
        // A recorder stores each sample, so a number beyond this does not fit into memory.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        histogram.record_many(duration.as_secs_f64(), count);
    }
}

/// Returns a label before the others of a series.
pub(super) fn with(label: Label, more: &[Label]) -> Vec<Label> {
    [&[label], more].concat()
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
