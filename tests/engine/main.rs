//! The engine over the memory backend, the simulated store and a quorum of them, mostly in paused time.
#![allow(clippy::unwrap_used)]

mod acquire;
mod bounds;
mod cancellation;
#[cfg(feature = "conformance")]
mod conformance;
mod downgrade;
mod every;
mod faults;
mod groups;
mod hold;
mod kept;
mod keys;
mod load;
mod no_wait;
mod owners;
mod permits;
mod quorum;
mod runtimes;
mod schedules;
mod several_keys;
mod shared;
mod shutdown;
mod stress;
#[path = "../support/mod.rs"]
mod support;
mod terms;
mod timers;
mod unknown_results;
mod unpolled;
