//! Runtimes that stop, block or end, and the runtime for background work.

mod ended;
mod on_stores;
mod stores;
