//! The servers of a backend, and the way to the server of each key.
//!
//! | file | responsibility |
//! |---|---|
//! | `kind` | what every topology provides |
//! | `open` | the topology that a URL names: the only match over topologies |
//! | `single`, `sentinel`, `cluster` | one server, the primary of a service, nodes with slots |
//! | `node` | one server and the connections to it |
//! | `route` | the way of a command to the server of its key |
//! | `replicas` | acquires that wait for replicas |
//! | `key_batches` | calls for many keys |
//!
//! A new topology implements `Topology` and is a case in `open`.

mod cluster;
mod key_batches;
mod kind;
mod node;
mod open;
mod replicas;
mod route;
mod sentinel;
mod single;

pub(crate) use key_batches::in_batches;
pub(crate) use kind::{Routes, Topology};
pub(crate) use node::{Node, NodeSettings};
pub(crate) use open::{Open, ServerSource, Servers, connect_error, open};
pub(crate) use replicas::MinReplicas;
pub(crate) use route::Route;
