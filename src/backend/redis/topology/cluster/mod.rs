//! Nodes that share the keys by slot.
//!
//! The cluster client of redis-rs is not used. It resends commands over a connection of its choice, so
//! that an acquire may arrive after its undo. It also blocks the commands to all nodes while it asks
//! one of them for the slots. Here, a key has one connection at a time, as at a single server, and a
//! node that hangs affects only its own keys.

mod map;
mod nodes;
mod topology;

pub(crate) use nodes::{Cluster, ClusterSettings};
