//! Leases in PostgreSQL 13 or newer, in a schema of their own.
//!
//! [`PostgresBackend::builder`] creates the backend of a URL. [`guide::postgres`](crate::guide::postgres) explains its
//! choice, its settings and the fence.
//!
//! A lease is a row of `tower_lock.lease`. Functions of the schema make all changes, one round trip each, under a mutex
//! of the key: an advisory lock that ends with the transaction of the command.
//!
//! Grants share one connection, and all other commands share a second one. Attempts that arrive together are one
//! command, and so are releases. A third connection receives the notifications.

// | part | responsibility |
// |---|---|
// | `builder` | the settings, the migration, a trial before the first lock |
// | `backend` | the `Backend` on these parts |
// | `batch` | collects the commands that arrive together |
// | `commands` | the statements and their rows |
// | `schema` | the SQL that creates the schema |
// | `error` | what an error of the client means for a command |
// | `line` | one shared connection, which is replaced when it ends |
// | `single` | a command for one item, which sessions prepare |
// | `source` | opens connections, from a URL or a pool |
// | `watchers` | the waiters of this process |
// | `listener` | one task that receives notifications, or polls |

pub(crate) mod backend;
mod batch;
mod builder;
mod commands;
mod error;
mod line;
mod listener;
mod schema;
mod single;
mod source;
mod watchers;

pub(crate) use backend::PostgresBackend;
pub use builder::PostgresBackendBuilder;
