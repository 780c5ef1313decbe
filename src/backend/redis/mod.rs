//! Leases in Redis, wire-compatible with Redisson's `getLock`.
//!
//! A lock is a hash with one field, `<uuid>:<number>` → `1`, and a time to live; it is free exactly
//! when the key is absent. All changes are made by scripts, so each happens whole or not at all,
//! and each may be repeated. Releases are published on `redisson_lock__channel:{<key>}`.
//!
//! Connections come from a deadpool-redis pool, but not one per command: each is taken out once,
//! multiplexed over, and replaced through the pool when it breaks. A key always goes to the same
//! connection, so a release cannot overtake its acquire.
//!
//! From the URL down to the wire:
//!
//! | | |
//! |---|---|
//! | what is asked for | `target` (URLs), `builder`, `tls`; `assemble` puts it together |
//! | where a key's commands go | `place`: one server, or the `cluster`'s node for the slot (`node`) |
//! | what is said | `script` and `scripts/`, under the names of `names`; refusals are told apart in `fault` |
//! | over which connection | `connection` (one place for a connection), `link` (the connection), `connect` (a new one), `sentinel` (to whom) |
//! | how acquires share a call; releases and renewals | `acquire_batch`; `batches` |
//! | grants that replicas have to acknowledge | `replicas`, `checkout` |
//! | who hears of releases, and of recoveries | `notify`, `recovery` |
//! | before the first lock | `self_test` |
//!
//! A new topology is a case of `Targets` (`target`), `Topology` (`place`), `Origin` (`connect`) and
//! `Endpoint` (`notify`). A new script stands in `scripts/` and `script`, is tried in `self_test`, and what
//! it calls is in the permissions of [`RedisBackend`].

mod backend;
mod builder;
mod command;
mod connection;
mod notify;
mod self_test;
mod topology;

pub use backend::RedisBackend;
pub use builder::RedisBackendBuilder;
pub use command::Publish;
pub use deadpool_redis;
