//! All functions at once.

use super::acquire::{
    concurrent_acquires_grant_exactly_one, expired_lease_frees_key,
    free_key_is_granted_and_held_key_is_busy, repeated_acquire_under_one_lease_is_granted,
};
use super::counter::{counter_after_expiry_or_force_increases, counter_of_each_grant_increases};
use super::hint::{
    forced_release_sends_hint_to_other_handle, release_sends_hint_to_every_subscriber,
    release_sends_hint_to_other_handle, watch_in_effect_sends_hint,
};
use super::holder::{
    forced_release_frees_key_of_any_lease, inspect_returns_holder_and_remaining_ttl,
};
use super::keep::{
    extend_of_watched_key_changes_nothing, extend_without_watch_extends_or_changes_nothing,
    keep_or_extend_without_lease_changes_nothing, release_or_keep_of_watched_key_releases,
    release_or_keep_without_watch_keeps_or_frees,
};
use super::lease::{
    batch_returns_one_result_per_item, empty_batch_returns_no_results,
    other_lease_cannot_release_or_renew, release_frees_key_and_repeat_changes_nothing,
    renewal_extends_and_does_not_shorten_lease, renewal_without_lease_creates_none,
};
use super::queue::{
    contend_for_free_key_is_granted, every_kind_of_release_transfers,
    leave_after_transfer_passes_key_on, leave_removes_waiter, release_or_keep_enters_next_lease,
    release_transfers_key_to_first_waiter, repeats_change_no_place, silent_waiter_is_passed_over,
    unconfirmed_transfer_expires,
};
use crate::backend::Backend;

/// Runs every function of this module in sequence.
///
/// `one` and `other` are two handles on one store.
///
/// # Panics
///
/// Panics if the backend breaks a promise. The message names it.
pub async fn all<B: Backend>(one: &B, other: &B) {
    free_key_is_granted_and_held_key_is_busy(one, other).await;
    repeated_acquire_under_one_lease_is_granted(one).await;
    release_frees_key_and_repeat_changes_nothing(one).await;
    other_lease_cannot_release_or_renew(one, other).await;
    renewal_without_lease_creates_none(one).await;
    renewal_extends_and_does_not_shorten_lease(one).await;
    batch_returns_one_result_per_item(one, other).await;
    empty_batch_returns_no_results(one).await;
    counter_of_each_grant_increases(one, other).await;
    counter_after_expiry_or_force_increases(one, other).await;
    expired_lease_frees_key(one).await;
    concurrent_acquires_grant_exactly_one(one, other).await;
    release_or_keep_without_watch_keeps_or_frees(one).await;
    release_or_keep_of_watched_key_releases(one, other).await;
    extend_without_watch_extends_or_changes_nothing(one).await;
    extend_of_watched_key_changes_nothing(one, other).await;
    keep_or_extend_without_lease_changes_nothing(one).await;
    watch_in_effect_sends_hint(one).await;
    release_sends_hint_to_other_handle(one, other).await;
    forced_release_sends_hint_to_other_handle(one, other).await;
    release_sends_hint_to_every_subscriber(one).await;
    inspect_returns_holder_and_remaining_ttl(one).await;
    forced_release_frees_key_of_any_lease(one, other).await;
    contend_for_free_key_is_granted(one, other).await;
    release_transfers_key_to_first_waiter(one, other).await;
    repeats_change_no_place(one, other).await;
    leave_removes_waiter(one, other).await;
    leave_after_transfer_passes_key_on(one, other).await;
    silent_waiter_is_passed_over(one, other).await;
    unconfirmed_transfer_expires(one, other).await;
    release_or_keep_enters_next_lease(one, other).await;
    every_kind_of_release_transfers(one, other).await;
}
