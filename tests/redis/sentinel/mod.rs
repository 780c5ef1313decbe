//! Locks behind real Sentinels.

mod connections;
mod failover;
