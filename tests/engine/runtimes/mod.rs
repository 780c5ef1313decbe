//! Runtimes that stop, block or end, and the place of background work.

mod blocked_home;
mod ended;
mod on_stores;
mod stores;
