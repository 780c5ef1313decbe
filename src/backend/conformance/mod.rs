//! The contract of [`Backend`](super::Backend) in code: one public test function per promise.
//!
//! Run [`all`] against your own backend, with two handles on one store. The handles are clones if clones
//! share their leases. Otherwise they are two clients of one server.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use tower_lock::backend::{Memory, conformance};
//!
//! let memory = Memory::new();
//! let other = memory.clone();
//! conformance::expired_lease_frees_key(&memory).await;
//! conformance::release_sends_hint_to_other_handle(&memory, &other).await;
//! # }
//! ```
//!
//! Each function uses fresh keys. Functions can therefore run concurrently, and against a store that is in
//! use. The functions measure Tokio's time, so a store in this process can be tested in paused time. They
//! poll with a deadline where an effect may be delayed.
//!
//! # Several modes
//!
//! These functions test the promises of shared leases, permits and downgrades. A backend without them passes.
//!
//! | promise | functions |
//! |---|---|
//! | exclusive leases, shared leases and permits exclude each other | [`shared_and_exclusive_leases_exclude_each_other`], [`permits_exclude_leases_of_other_modes`], [`downgraded_lease_is_shared`] |
//! | a permit is granted only while fewer than its limit hold the key | [`permits_up_to_limit_hold_key_together`], [`each_permit_obeys_its_own_limit`], [`concurrent_permits_stay_within_limit`] |
//! | the key is held until its last lease ends, and is free after that | [`shared_lease_expires_by_itself`], [`remaining_ttl_is_that_of_latest_permit`] |
//! | a renewal extends no other lease | [`shared_lease_expires_by_itself`], [`expired_permit_frees_only_its_place`] |
//! | counters increase from one mode to the next | [`counters_of_both_modes_increase`], [`counters_of_permits_increase`], [`counter_of_downgraded_lease_increases`] |
//! | a waiting exclusive lease stops later shared leases and permits | [`waiting_exclusive_lease_stops_shared_ones`], [`waiting_shared_leases_are_served_together`], [`waiting_lease_of_other_mode_stops_permits`], [`downgrade_admits_waiting_shared_leases`] |
//!
//! The engine is responsible for re-entry, for rejected upgrades, and for the loss of all holds of a lost lease.

mod acquire;
mod all;
mod counter;
mod downgrade;
mod hint;
mod holder;
mod immediate;
mod keep;
mod lease;
pub mod node;
mod permits;
mod queue;
mod shared;
mod support;

pub use acquire::{
    concurrent_acquires_grant_exactly_one, expired_lease_frees_key, expired_lease_is_not_renewed,
    free_key_is_granted_and_held_key_is_busy, repeated_acquire_under_one_lease_is_granted,
};
pub use all::all;
pub use counter::{
    counter_after_expiry_or_force_increases, counter_of_each_grant_increases,
    tokens_per_counter_are_from_1_to_256,
};
pub use downgrade::{
    counter_of_downgraded_lease_increases, downgrade_admits_waiting_shared_leases,
    downgrade_extends_and_does_not_shorten_lease, downgrade_without_lease_changes_nothing,
    downgraded_lease_is_shared,
};
pub use hint::{
    forced_release_sends_hint_to_other_handle, release_sends_hint_to_every_subscriber,
    release_sends_hint_to_other_handle, watch_in_effect_sends_hint,
};
pub use holder::{
    forced_release_frees_key_of_any_lease, forced_release_spares_other_holder,
    inspect_returns_holder_and_remaining_ttl,
};
pub use immediate::{
    immediate_commands_match_others, immediate_lease_expires, immediate_store_needs_no_runtime,
};
pub use keep::{
    kept_lease_is_not_shortened, release_or_keep_of_watched_key_releases,
    release_or_keep_without_lease_changes_nothing, release_or_keep_without_watch_keeps_or_frees,
};
pub use lease::{
    batch_returns_one_result_per_item, empty_batch_returns_no_results,
    other_lease_cannot_release_or_renew, release_frees_key_and_repeat_changes_nothing,
    renewal_extends_and_does_not_shorten_lease, renewal_without_lease_creates_none,
};
pub use permits::{
    concurrent_permits_stay_within_limit, counters_of_permits_increase,
    each_permit_obeys_its_own_limit, expired_permit_frees_only_its_place,
    forced_release_ends_one_permit_or_all, permits_exclude_leases_of_other_modes,
    permits_up_to_limit_hold_key_together, remaining_ttl_is_that_of_latest_permit,
    waiting_lease_of_other_mode_stops_permits, waiting_permits_are_served_in_order,
};
pub use queue::{
    contend_for_free_key_is_granted, every_kind_of_release_transfers, expiry_serves_first_waiter,
    leave_after_transfer_passes_key_on, leave_removes_waiter, leave_returns_one_result_per_lease,
    polling_waiter_is_served_in_order, release_or_keep_enters_next_lease,
    release_transfers_key_to_first_waiter, repeats_change_no_place, silent_waiter_is_passed_over,
    transferred_key_is_reserved_for_its_waiter, unconfirmed_transfer_expires,
};
pub use shared::{
    counters_of_both_modes_increase, forced_release_ends_shared_leases,
    repeated_acquire_under_shared_lease_is_granted, shared_and_exclusive_leases_exclude_each_other,
    shared_lease_expires_by_itself, waiting_exclusive_lease_stops_shared_ones,
    waiting_shared_leases_are_served_together,
};
