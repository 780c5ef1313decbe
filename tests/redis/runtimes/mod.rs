//! Runtimes that lack a driver, stop, block or end.

mod bare;
mod blocked;
#[path = "../../engine/runtimes/on_stores/mod.rs"]
mod on_stores;
mod dials;
mod stopped;
mod stores;
