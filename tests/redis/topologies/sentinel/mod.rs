//! Locks behind real Sentinels.

mod connections;
mod exclusion;
mod failover;
mod sentinels;
mod stale;
mod support;
