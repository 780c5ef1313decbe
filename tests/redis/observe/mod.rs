//! The logs, metrics and dashboard of the Redis backend.

#[cfg(feature = "dashboard")]
mod dashboard;
mod logs;
mod metrics;
mod writes;
