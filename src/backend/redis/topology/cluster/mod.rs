//! Many nodes that share the keys by their slots.
//!
//! Not the cluster client of redis-rs: it sends commands again on its own, on a connection of its
//! choice, so that an acquire may arrive after what undoes it; and it holds back the commands to all
//! nodes while it asks one for the slots. Here a key has one connection at a time, as at a single
//! node, and a node that hangs concerns nobody but its own keys.

mod map;
mod nodes;

pub(crate) use nodes::{Cluster, Settings};
