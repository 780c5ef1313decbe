//! The events and metrics of acquires, losses, unlocked requests and the queue across processes, with the features `tracing` and
//! `metrics`.
//!
//! The Redis backend logs the outages of its servers itself.
//!
//! A report contains no key and no owner. Requests choose the keys, and as a metric label, each value would
//! create a time series.

mod acquired;
mod lost;
mod misconfigured;
#[cfg(feature = "redis")]
mod queue;
mod unlocked;

pub(crate) use acquired::acquired;
pub(crate) use lost::lost;
pub(crate) use misconfigured::misconfigured;
#[cfg(feature = "redis")]
pub(crate) use queue::{confirmed, passed_over, transferred};
pub(crate) use unlocked::{observed, passed};
