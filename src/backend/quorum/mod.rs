//! Several independent stores as one.
//!
//! An operation sends its command to all nodes at once. The first decisive majority of replies decides it
//! ([`flight`], [`election`]). The operation polls its commands without tasks. Commands that are in flight
//! after the decision continue in one task.
//!
//! The order of commands at each node makes this safe. A release must not overtake a vote for the same
//! lease, even if the attempt no longer waits for the vote's reply. A late vote must be followed by its
//! release. [`ledger`] ensures this order.
//!
//! | the vote of a node | the release at that node |
//! |---|---|
//! | has the reply granted or unknown | the release is sent |
//! | has the reply busy or rejected | no release is needed |
//! | is in flight | its sender asks for the release after its end |
//!
//! For each node, one task per runtime repeats the releases that the node does not confirm ([`owed`]), with backoff,
//! until the node replies, or the leases must have expired there. The task keeps the backend for its first 2 s, and ends
//! with it afterwards.
//!
//! The other commands need no order among the nodes. They count replies ([`tally`]) until a majority agrees.

mod acquire;
mod ask;
mod backend;
mod builder;
mod election;
mod fault;
mod flight;
mod inner;
mod ledger;
mod node;
mod owed;
mod release;
mod tally;
#[cfg(test)]
mod tests;

pub use backend::Quorum;
pub use builder::QuorumBuilder;
pub use node::{Fence, Node};
