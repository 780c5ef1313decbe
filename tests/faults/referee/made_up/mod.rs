//! Made-up logs, of which the referee must detect those that break an invariant.

mod holds;
mod renewals;

pub(crate) use holds::{detects_overlaps_by_mode, detects_permits_above_limit};
pub(crate) use renewals::detects_renewals;
