//! Runtimes that lack a driver, stop, block or end.

mod bare;
mod blocked;
mod stopped;
