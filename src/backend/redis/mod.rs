//! Leases in one Redis, wire-compatible with Redisson's `getLock`.
//!
//! A lock is a hash with one field, `<uuid>:<number>` → `1`, and a time to live; it is free exactly
//! when the key is absent. All changes are made by scripts, so each happens whole or not at all,
//! and each may be repeated. Releases are published on `redisson_lock__channel:{<key>}`.
//!
//! Connections come from a deadpool-redis pool, but not one per command: each is taken out once,
//! multiplexed over, and replaced through the pool when it breaks. A key always goes to the same
//! connection, so a release cannot overtake its acquire.

mod backend;
mod backoff;
mod builder;
mod cluster;
mod connect;
mod fault;
mod lent;
mod link;
mod names;
mod node;
mod notify;
mod outage;
mod place;
mod quarantine;
mod recovery;
mod replicas;
mod script;
mod self_test;
mod sentinel;
mod shard;
mod target;

pub use backend::RedisBackend;
pub use builder::RedisBackendBuilder;
pub use deadpool_redis;
pub use script::Publish;
