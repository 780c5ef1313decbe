//! The metrics of this crate, for programs that configure an exporter.
//!
//! [`guide::operations`](crate::guide::operations) lists the metrics. The names of all metrics begin with
//! `tower_lock_`.
//!
// `tests/lib.rs` runs the program, which needs the exporter.
#![cfg_attr(not(doctest), doc = include_str!("prometheus.md"))]
//!
//! # When they are reported
//!
//! Requests only count. A thread adds the counts to the recorder once per second, and the gauges that need a look at
//! all locks every 5 s. It starts with the first manager of the process, and ends with the last one.
//! [`LockManager::flush_metrics`](crate::LockManager::flush_metrics) reports at once. The end of a manager and its
//! [shutdown](crate::LockManager::shutdown) do as well.
//!
//! A manager registers its series, with the value zero, when it is built. A recorder that is installed later receives
//! them within a second, with all counts since then. Histograms are exact in the number of durations per bucket of
//! [`BUCKETS`], and to 6 % in their sums.
//!
//! # Idle timeouts
//!
//! `PrometheusBuilder::idle_timeout` removes series that nothing writes. The counters and gauges of this crate are
//! written every second and every 5 s, so a timeout of a minute keeps them. A histogram without samples is removed, and
//! begins again at zero with the next sample. With `MetricKindMask::COUNTER | MetricKindMask::GAUGE`, the timeout keeps
//! histograms too.
//!
//! # How many series there are
//!
//! Labels have fixed values, except `layer` and `server`. The number of series is therefore bounded if the servers keep
//! their addresses: a recorder without an idle timeout keeps the series of a server that has left. A histogram has 23
//! series: the 20 [`BUCKETS`], `+Inf`, the sum and the number.
//!
//! | for each | series | which |
//! |---|---|---|
//! | layer name, of at most 32, and all acquires without one | 128 | 21 outcomes, 5 ways of a grant, 6 reasons of a loss, 3 histograms of waits, 1 of holds, the owners of 3 modes, the waiters |
//! | process | 21 | renewals and releases 3 each, wake-ups 3, forced releases 3, unlocked requests 2, 7 gauges |
//! | process with a backend that sends commands | 25 | the queue across processes: 2 counters and a histogram |
//! | command of such a backend, of 9 | 69 | a histogram for each of 3 outcomes |
//! | part of a server, of at most 192 at a time | 2 | its state, and its incidents |
//!
//! Each kind of error is an outcome of its own, because [`guide::incidents`](crate::guide::incidents) distinguishes
//! them.

mod exporter;
mod families;
mod manager;
mod process;
#[cfg(feature = "axum")]
mod rejected;
mod series;

pub(in crate::observe) use exporter::Exporter;
#[cfg(feature = "axum")]
pub(in crate::observe) use rejected::rejected_at_once;

/// The bounds of histogram buckets in seconds: 20 powers of two, from 128 µs to 67 s.
///
/// The counts of these buckets are exact.
pub const BUCKETS: [f64; 20] = {
    let mut bounds = [0.000_128; 20];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 2.0;
        at += 1;
    }
    bounds
};
