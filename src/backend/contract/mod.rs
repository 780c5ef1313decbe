//! The contract of a lock store, and the requests, outcomes and errors of its commands.

mod backend;
mod capabilities;
mod error;
mod holder;
mod lease_id;
mod outcome;
mod request;

pub use crate::mode::Mode;
pub use backend::Backend;
pub use capabilities::Capabilities;
pub(crate) use error::LATE;
pub use error::{BackendError, BackendErrorKind};
pub use holder::Holder;
pub use lease_id::LeaseId;
pub use outcome::{
    Acquired, Contended, Downgraded, ForceReleased, Released, ReleasedOrKept, Renewed,
};
pub use request::{AcquireRequest, KeepRequest, Release, Renewal};
