//! The spans of acquires.

mod request;
mod wait;

pub(crate) use request::RequestSpan;
pub(crate) use wait::WaitSpan;
