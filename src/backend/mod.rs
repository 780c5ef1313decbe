//! The contract between the engine and a store of leases, and the stores.
//!
//! Implement [`Backend`] for your own store: [`guide::backend`](crate::guide::backend) describes the steps.

// A new store of this crate is a module here. It runs the conformance suite in `tests/engine/conformance.rs`, and its
// URL belongs in `connect.rs`.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod contract;
mod erased;
mod hints;
mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
mod queue;
mod quorum;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod recovery;
#[cfg(feature = "redis")]
pub mod redis;
mod subscribers;
mod waiters;

pub use contract::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Downgraded, ForceReleased,
    Holder, Immediate, KeepRequest, LeaseId, Mode, Modes, Release, Released, ReleasedOrKept,
    Renewal, Renewed,
};
pub use hints::{Hint, HintSender, Hints};
pub use memory::Memory;
pub use queue::{ContendRequest, Contended};
pub use quorum::{Fence, Node, Quorum, QuorumBuilder};

pub(crate) use contract::LATE;
pub(crate) use erased::{BoxFuture, Erased, ErasedBackend};
pub(crate) use hints::PollEarly;
