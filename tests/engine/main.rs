//! The engine over the memory backend, the simulated store and a quorum of them, mostly in paused time.
#![allow(clippy::unwrap_used)]

mod acquire;
mod background_runtime;
mod bounds;
mod cancellation;
#[cfg(feature = "conformance")]
mod conformance;
mod faults;
mod groups;
mod hold;
mod load;
mod no_wait;
mod owners;
mod quorum;
mod runtime_guards;
mod runtime_waiters;
mod runtimes;
mod schedules;
mod several_keys;
mod stopped_runtime;
mod stress;
#[path = "../support/mod.rs"]
mod support;
mod terms;
mod timers;
mod unknown_results;
mod unpolled;
