//! Permits. A backend without them passes each of these functions.

pub(super) mod limits;
pub(super) mod requests;
pub(super) mod waiting;
