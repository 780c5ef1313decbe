//! Nodes that share the keys by slot.
//!
//! | file | responsibility |
//! |---|---|
//! | `topology` | the cluster as a topology |
//! | `nodes` | the nodes, and the owner of each slot |
//! | `map` | a view of the slots |
//! | `identity` | which cluster this is |
//! | `member` | the check of new connections to a node |
//! | `refresh` | the refresh of the map |
//! | `subscriptions` | each subscription at the node of its slot |
//!
//! The cluster client of redis-rs is not used. It resends commands over a connection of its choice, so
//! that an acquire may arrive after its undo. It also blocks the commands to all nodes while it asks
//! one of them for the slots. Here, a key has one connection at a time, as at a single server, and a
//! node that hangs affects only its own keys.

mod identity;
mod map;
mod member;
mod nodes;
mod refresh;
mod subscriptions;
mod topology;

pub(crate) use nodes::{Cluster, ClusterSettings};
