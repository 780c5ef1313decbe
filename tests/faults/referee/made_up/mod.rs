//! Made-up logs, of which the referee must detect those that break an invariant.

mod holds;
mod renewals;

pub(crate) use holds::{
    detects_overlaps_by_mode, detects_permits_above_limit, detects_tokens_of_divided_servers,
};
pub(crate) use renewals::detects_renewals;
