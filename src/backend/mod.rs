//! The contract between the engine and a store of leases, and the builders of stores.
//!
//! Implement [`Backend`] for your own store: [`guide::backend`](crate::guide::backend) describes the steps.

// A new store of this crate is a module here, and a name in `lib.rs`. It runs the conformance suite in
// `tests/engine/conformance.rs`, and its URL belongs in `connect.rs`.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod contract;
mod erased;
mod hints;
pub(crate) mod memory;
#[cfg(any(feature = "postgres", feature = "redis"))]
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
mod outage;
#[cfg(feature = "postgres")]
pub mod postgres;
pub(crate) mod quorum;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod recovery;
#[cfg(feature = "redis")]
pub mod redis;
mod subscribers;
mod waiters;

pub use contract::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Capabilities, Contended,
    Downgraded, ForceReleased, Holder, KeepRequest, LeaseId, Mode, Release, Released,
    ReleasedOrKept, Renewal, Renewed,
};
pub use hints::{Hint, HintSender, Hints};
pub use quorum::{Fence, Node, QuorumBuilder};

pub(crate) use contract::LATE;
pub(crate) use erased::{BoxFuture, Erased, ErasedBackend, Immediate};
pub(crate) use hints::PollEarly;
#[cfg(test)]
pub(crate) use memory::Memory;
