//! The response to a request that did not get its lock, or lost it.
//!
//! A new rejection is an `ErrorKind` with a response in `problem.rs`. `layer/reject.rs` applies the settings of the layer,
//! such as `status`, and the estimate of `Retry-After` is from the lane (`lock/lane/queue/estimate.rs`).

mod form;
mod lock_rejection;
mod problem;

pub(crate) use form::RequestInfo;
pub use lock_rejection::LockRejection;
