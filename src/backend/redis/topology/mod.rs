//! The server of each key: a single server, the primary of a service, or a node of a cluster.

mod assemble;
mod cluster;
mod key_batches;
mod node;
mod replicas;
mod route;
mod sentinel;

pub(crate) use cluster::{Cluster, Settings};
pub(crate) use key_batches::spread;
pub(crate) use node::Node;
pub(crate) use replicas::{Acquire, MinReplicas, Replicas};
pub(crate) use route::{Route, Topology};
pub(crate) use sentinel::{Sentinels, require_primary};
