//! What redis-rs and deadpool-redis do today, for the table "Hand-written or library" in ARCHITECTURE.md.
//!
//! Each test asserts a reason for a part of ours. If one fails after an update, the library may be used for
//! that part: see the table.

mod cluster;
mod credentials;
mod manager;
mod pools;
mod sentinel;
mod subscriptions;
