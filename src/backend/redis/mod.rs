//! Leases in Redis, wire-compatible with Redisson's `getLock`.
//!
//! [`RedisBackend::builder`] creates the backend of a URL. [`guide::redis`](crate::guide::redis) lists its settings and
//! the permissions that it needs.
//!
//! A lock is a hash with one field, `<uuid>:<number>` → `1`, and a TTL. It is free exactly when the key is
//! absent. Scripts make all changes, so each change is atomic and repeatable. Releases are published on
//! `redisson_lock__channel:{<key>}`.
//!
//! Commands share multiplexed connections, which tasks open and replace. A deadpool-redis pool supplies the
//! connections of acquires that wait for replicas. A key always has the same connection, so a release cannot
//! overtake its acquire.

// | part | responsibility |
// |---|---|
// | `builder` | the settings, and the parts of a backend made from them |
// | `backend` | the `Backend` on these parts |
// | `inner` | what the clones of a backend share |
// | `self_test` | checks of the servers before the first lock |
// | `command` | scripts, names, replies, errors |
// | `connection` | the connections to one server, which tasks open and replace |
// | `topology` | the servers, and the way to the server of each key |
// | `notify` | notifies waiters of releases |

pub(crate) mod backend;
mod builder;
mod command;
mod connection;
mod inner;
mod notify;
mod self_test;
mod topology;

pub(crate) use backend::RedisBackend;
pub use builder::RedisBackendBuilder;
pub use connection::Credentials;
pub use notify::Publish;
