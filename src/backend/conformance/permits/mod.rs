//! Permits, if the backend has them.

pub(super) mod limits;
pub(super) mod requests;
pub(super) mod waiting;
