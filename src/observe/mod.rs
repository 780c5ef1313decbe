//! What the crate reports: the counts of the tally, the metrics that are made of them, and the events of `tracing`.
//!
//! The backends log the outages of their servers themselves.
//!
//! A report contains no key and no owner. Requests choose the keys, and as a metric label, each value would
//! create a time series.

#![cfg_attr(
    not(feature = "tracing"),
    allow(dead_code, unused_variables, reason = "only events have the fields")
)]

mod acquired;
#[cfg(feature = "dashboard")]
mod force_released;
mod held;
mod label;
mod lost;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "tracing")]
mod millis;
mod misconfigured;
#[allow(dead_code, reason = "each feature needs a part of the labels")]
mod outcome;
#[allow(dead_code, reason = "backends write it, and `metrics` reads it")]
mod queue;
mod renewal;
#[allow(
    dead_code,
    reason = "backends write it, and `metrics` and `dashboard` read it"
)]
mod servers;
mod spans;
#[allow(dead_code, reason = "`metrics` and `dashboard` read a part each")]
mod tally;
mod unlocked;
mod via;

#[cfg(feature = "axum")]
pub(crate) use acquired::not_provided;
pub(crate) use acquired::{not_acquired, wait_dropped};
#[cfg(feature = "dashboard")]
pub(crate) use force_released::force_released;
pub(crate) use held::{GrantInfo, granted, released};
pub(crate) use lost::{Loss, lost};
#[cfg(feature = "axum")]
pub(crate) use misconfigured::kind_on_two_routes;
pub(crate) use misconfigured::{Mistake, not_awaited};
pub(crate) use outcome::{Command, CommandOutcome, Forced, Outcome, Permit, Reply, WokenBy};
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use queue::transferred;
#[cfg(feature = "redis")]
pub(crate) use queue::{confirmed, passed_over};
pub(crate) use renewal::RenewalOutage;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use servers::{Part, Reporter};
pub(crate) use spans::{RequestSpan, WaitSpan};
#[cfg(feature = "metrics")]
pub(crate) use tally::Gauges;
pub(crate) use tally::{Name, Tally};
pub(crate) use unlocked::{observed, passed};
pub use via::{LostReason, Via};
#[cfg(feature = "dashboard")]
pub(crate) use {
    servers::{Server, read as read_servers},
    tally::{Distribution, Totals, TrafficTotals},
};
