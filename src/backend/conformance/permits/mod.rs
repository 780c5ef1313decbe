//! Permits. A backend without them passes each of these functions.

mod limits;
pub(super) mod requests;
mod waiting;

pub use limits::{
    concurrent_permits_stay_within_limit, counters_of_permits_increase,
    each_permit_obeys_its_own_limit, expired_permit_frees_only_its_place,
    forced_release_ends_one_permit_or_all, permits_exclude_leases_of_other_modes,
    permits_up_to_limit_hold_key_together, remaining_ttl_is_that_of_latest_permit,
};
pub use waiting::{waiting_lease_of_other_mode_stops_permits, waiting_permits_are_served_in_order};
