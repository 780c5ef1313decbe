//! The functions by name, and all at once.

use super::permits::{limits, waiting};
use super::queue::{places, transfers};
use super::{acquire, counter, downgrade, hint, holder, keep, lease, shared};
use crate::backend::{Backend, Mode};

macro_rules! functions {
    ($one:ident, $other:ident: $($room:ident::$name:ident $handles:tt $(.$wait:tt)? $(if $mode:ident)?;)*) => {
        /// The names of the functions, in the order of [`all`].
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        /// Runs the function with this name, of [`FUNCTIONS`]. Without the mode that it is about, a backend passes.
        ///
        /// `one` and `other` are two handles on one store.
        ///
        /// # Panics
        ///
        /// Panics if the backend breaks the promise, or if no function has the name.
        pub async fn run<B: Backend>(name: &str, $one: &B, $other: &B) {
            match name {
                $(stringify!($name) => {
                    $(if !$one.capabilities().include(Mode::$mode) {
                        return;
                    })?
                    $room::$name $handles $(.$wait)?;
                })*
                _ => panic!("no function is named {name}"),
            }
        }
    };
}

functions! {
    one, other:
    acquire::free_key_is_granted_and_held_key_is_busy(one, other).await;
    acquire::repeated_acquire_under_one_lease_is_granted(one).await;
    lease::release_frees_key_and_repeat_changes_nothing(one).await;
    lease::other_lease_cannot_release_or_renew(one, other).await;
    lease::renewal_without_lease_creates_none(one).await;
    lease::renewal_extends_and_does_not_shorten_lease(one).await;
    lease::batch_returns_one_result_per_item(one, other).await;
    lease::empty_batch_returns_no_results(one).await;
    counter::counter_of_each_grant_increases(one, other).await;
    counter::counter_after_expiry_or_force_increases(one, other).await;
    counter::tokens_per_counter_are_from_1_to_256(one);
    acquire::expired_lease_frees_key(one).await;
    acquire::expired_lease_is_not_renewed(one).await;
    acquire::concurrent_acquires_grant_exactly_one(one, other).await;
    keep::release_or_keep_without_watch_keeps_or_frees(one).await;
    keep::release_or_keep_of_watched_key_releases(one, other).await;
    keep::kept_lease_is_not_shortened(one).await;
    keep::release_or_keep_without_lease_changes_nothing(one).await;
    keep::release_or_keep_returns_one_result_per_lease(one).await;
    hint::watch_in_effect_sends_hint(one).await;
    hint::release_sends_hint_to_other_handle(one, other).await;
    hint::forced_release_sends_hint_to_other_handle(one, other).await;
    hint::release_sends_hint_to_every_subscriber(one).await;
    holder::inspect_returns_holder_and_remaining_ttl(one).await;
    holder::forced_release_frees_key_of_any_lease(one, other).await;
    holder::forced_release_spares_other_holder(one, other).await;
    places::contend_for_free_key_is_granted(one, other).await;
    transfers::release_transfers_key_to_first_waiter(one, other).await;
    transfers::transferred_key_is_reserved_for_its_waiter(one, other).await;
    places::polling_waiter_is_served_in_order(one, other).await;
    places::expiry_serves_first_waiter(one, other).await;
    places::repeats_change_no_place(one, other).await;
    places::leave_removes_waiter(one, other).await;
    transfers::leave_after_transfer_passes_key_on(one, other).await;
    places::leave_returns_one_result_per_lease(one, other).await;
    places::silent_waiter_is_passed_over(one, other).await;
    transfers::unconfirmed_transfer_expires(one, other).await;
    places::release_or_keep_enters_next_lease(one, other).await;
    transfers::every_kind_of_release_transfers(one, other).await;
    shared::shared_and_exclusive_leases_exclude_each_other(one, other).await if Shared;
    shared::repeated_acquire_under_shared_lease_is_granted(one, other).await if Shared;
    shared::shared_lease_expires_by_itself(one, other).await if Shared;
    shared::counters_of_both_modes_increase(one, other).await if Shared;
    shared::waiting_exclusive_lease_stops_shared_ones(one, other).await if Shared;
    shared::waiting_shared_leases_are_served_together(one, other).await if Shared;
    shared::forced_release_ends_shared_leases(one, other).await if Shared;
    limits::permits_up_to_limit_hold_key_together(one, other).await if Permit;
    limits::each_permit_obeys_its_own_limit(one, other).await if Permit;
    limits::concurrent_permits_stay_within_limit(one, other).await if Permit;
    limits::permits_exclude_leases_of_other_modes(one, other).await if Permit;
    limits::expired_permit_frees_only_its_place(one, other).await if Permit;
    limits::remaining_ttl_is_that_of_latest_permit(one, other).await if Permit;
    limits::forced_release_ends_one_permit_or_all(one, other).await if Permit;
    limits::counters_of_permits_increase(one, other).await if Permit;
    waiting::waiting_permits_are_served_in_order(one, other).await if Permit;
    waiting::waiting_lease_of_other_mode_stops_permits(one, other).await if Permit;
    downgrade::downgraded_lease_is_shared(one, other).await if Shared;
    downgrade::downgrade_admits_waiting_shared_leases(one, other).await if Shared;
    downgrade::counter_of_downgraded_lease_increases(one, other).await if Shared;
    downgrade::downgrade_without_lease_changes_nothing(one, other).await if Shared;
    downgrade::downgrade_extends_and_does_not_shorten_lease(one, other).await if Shared;
}

/// Runs every function of this module in sequence.
///
/// `one` and `other` are two handles on one store.
///
/// # Panics
///
/// Panics if the backend breaks a promise. The message names it.
pub async fn all<B: Backend>(one: &B, other: &B) {
    for name in FUNCTIONS {
        run(name, one, other).await;
    }
}
