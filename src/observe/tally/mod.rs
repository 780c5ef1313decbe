//! Counts what happens to the locks of one manager. Metrics and the dashboard read it.
//!
//! Each layer name has its own counts, in 16 stripes on cache lines of their own. A thread writes one stripe,
//! with relaxed atomics and without a mutex. A stripe is allocated when it is first used. A reader adds the
//! stripes up.
//!
//! Without the features `metrics` and `dashboard`, the calls do nothing.

mod gauges;
mod histogram;
mod layer;
mod manager;
mod names;
mod rare;
mod striped;
#[cfg(all(test, any(feature = "metrics", feature = "dashboard")))]
mod tests;
mod totals;

#[cfg(feature = "metrics")]
pub(crate) use gauges::Gauges;
pub(crate) use histogram::Distribution;
pub(in crate::observe) use histogram::Histogram;
pub(crate) use manager::Tally;
pub(crate) use names::Name;
#[cfg(any(feature = "metrics", feature = "dashboard"))]
pub(crate) use totals::{Totals, TrafficTotals};
