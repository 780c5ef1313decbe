//! Permits. A backend without them passes each of these functions.

pub(super) mod limits;
mod requests;
pub(super) mod waiting;
