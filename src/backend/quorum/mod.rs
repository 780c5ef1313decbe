//! N independent stores as one.
//!
//! An operation sends its command to all nodes at once and is decided by the first majority of answers
//! that leaves no doubt ([`flight`], [`election`]). It drives its commands itself, without tasks; those
//! that are still under way when it is decided go on in one task.
//!
//! What makes that safe is an order that must hold on each single node: a release must not overtake a
//! vote for the same lease, also where the vote's answer is no longer waited for, and a vote that comes
//! late must be followed by the release that it missed. [`ledger`] keeps that order.
//!
//! | the node's vote | when the lease is released |
//! |---|---|
//! | was answered: granted, or unknown | the release goes out |
//! | was answered: busy, or refused | nothing is owed |
//! | is in flight | its sender sends the release after its end |
//!
//! A node that does not answer the release is asked again by a task, with backoff, until it does or
//! the lease must have run out there.

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
mod release;
#[cfg(test)]
mod tests;

pub use backend::Quorum;
pub use builder::QuorumBuilder;
pub use node::{Fence, Node};
