//! The engine over the memory backend and the simulated store, mostly in paused time.
#![allow(clippy::unwrap_used)]

mod acquire;
mod background_runtime;
mod bounds;
mod cancellation;
mod faults;
mod force_release;
mod hold;
mod load;
mod no_wait;
#[path = "../support/other_runtime.rs"]
mod other_runtime;
mod owners;
mod runtime_guards;
mod runtime_waiters;
mod runtimes;
mod schedules;
mod several_keys;
#[path = "../support/simulated.rs"]
mod simulated;
mod stopped_runtime;
mod stress;
mod support;
mod terms;
mod timers;
mod unknown_results;
mod unpolled;
