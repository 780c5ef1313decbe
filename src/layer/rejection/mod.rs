//! The response to a request that did not get its lock, or lost it.
//!
//! A new rejection is an `ErrorKind` with a response in `problem.rs`.

mod form;
mod lock_rejection;
mod problem;

pub(crate) use form::RequestInfo;
pub use lock_rejection::LockRejection;
