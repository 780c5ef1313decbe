//! The contract of a lock store, and the requests, outcomes and errors of its commands.

mod backend;
mod error;
mod holder;
mod immediate;
mod lease_id;
mod mode;
mod outcome;
mod request;

pub use crate::mode::Mode;
pub use backend::Backend;
pub(crate) use error::LATE;
pub use error::{BackendError, BackendErrorKind};
pub use holder::Holder;
pub use immediate::Immediate;
pub use lease_id::LeaseId;
pub use mode::Modes;
pub use outcome::{Acquired, Downgraded, ForceReleased, Released, ReleasedOrKept, Renewed};
pub use request::{AcquireRequest, KeepRequest, Release, Renewal};
