//! Runtimes that lack a driver, stop, block or end.

mod bare;
mod blocked;
mod dials;
#[path = "../../engine/runtimes/on_stores/mod.rs"]
mod on_stores;
mod stopped;
mod stores;
