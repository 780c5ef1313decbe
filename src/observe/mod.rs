//! The events and metrics of acquires and losses, with the features `tracing` and `metrics`.
//!
//! Only the engine reports here. The Redis backend logs the outages of its servers itself.
//!
//! A report contains no key and no owner. Requests choose the keys, and as a metric label, each value would
//! create a time series.

mod acquired;
mod lost;

pub(crate) use acquired::acquired;
pub(crate) use lost::lost;
