//! The metrics that a part of a test reports.

use std::collections::BTreeMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// The values of all series: a count, a gauge, or the samples of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Count(u64),
    Gauge(f64),
    Samples(Vec<f64>),
}

/// A recorder of one thread.
pub(crate) struct Recorder {
    recorder: DebuggingRecorder,
    snapshotter: Snapshotter,
}

/// The series, by their names and labels: `name{label="value"}`.
#[derive(Debug)]
pub(crate) struct Seen(pub(crate) BTreeMap<String, Value>);

impl Recorder {
    pub(crate) fn new() -> Self {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        Self {
            recorder,
            snapshotter,
        }
    }

    /// Runs `work` with this recorder.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&self.recorder, work)
    }

    /// Returns the values since the last call. Counters begin again at each call.
    pub(crate) fn read(&self) -> Seen {
        let series = self.snapshotter.snapshot().into_vec().into_iter();
        let series = series.map(|(key, _, _, value)| {
            let labels = key.key().labels();
            let labels = labels.map(|label| format!("{}=\"{}\"", label.key(), label.value()));
            let labels: Vec<_> = labels.collect();
            let name = match &labels[..] {
                [] => key.key().name().to_owned(),
                labels => format!("{}{{{}}}", key.key().name(), labels.join(",")),
            };
            let value = match value {
                DebugValue::Counter(count) => Value::Count(count),
                DebugValue::Gauge(gauge) => Value::Gauge(gauge.into_inner()),
                DebugValue::Histogram(samples) => {
                    Value::Samples(samples.into_iter().map(f64::from).collect())
                }
            };
            (name, value)
        });
        Seen(series.collect())
    }
}

impl Seen {
    pub(crate) fn count(&self, series: &str) -> u64 {
        match self.0.get(series) {
            Some(Value::Count(count)) => *count,
            other => panic!("{series}: {other:?} in {self:#?}"),
        }
    }

    pub(crate) fn gauge(&self, series: &str) -> f64 {
        match self.0.get(series) {
            Some(Value::Gauge(gauge)) => *gauge,
            other => panic!("{series}: {other:?} in {self:#?}"),
        }
    }

    pub(crate) fn samples(&self, series: &str) -> &[f64] {
        match self.0.get(series) {
            Some(Value::Samples(samples)) => samples,
            other => panic!("{series}: {other:?} in {self:#?}"),
        }
    }

    /// Returns the counts above zero of the series that begin with `name`, without that name.
    pub(crate) fn counts(&self, name: &str) -> Vec<(&str, u64)> {
        let counts = self.0.iter().filter_map(|(series, value)| match value {
            Value::Count(count) if *count > 0 => Some((series.strip_prefix(name)?, *count)),
            _ => None,
        });
        counts.collect()
    }
}
