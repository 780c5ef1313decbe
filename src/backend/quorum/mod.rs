//! N independent stores as one.

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
