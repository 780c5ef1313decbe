//! N independent stores as one.

mod acquire;
mod ask;
mod builder;
mod election;
mod fault;
mod flight;
mod inner;
mod ledger;
mod node;
#[allow(clippy::module_inception)]
mod quorum;
mod release;
#[cfg(test)]
mod tests;

pub use builder::QuorumBuilder;
pub use node::{Fence, Node};
pub use quorum::Quorum;
