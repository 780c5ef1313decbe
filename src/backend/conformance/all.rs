//! All functions at once.

use super::acquire::{
    a_free_key_is_granted_and_a_held_one_is_busy, expiry_frees_the_key,
    one_of_many_contenders_is_granted, trying_again_under_one_lease_is_granted_again,
};
use super::counter::{counters_increase_over_expiry_and_force, counters_increase_over_grants};
use super::hint::{
    a_forced_release_is_hinted_to_the_other_handle, a_release_is_hinted_to_the_other_handle,
    a_watch_is_hinted_once_it_is_in_force, every_watcher_of_a_key_is_hinted,
};
use super::holder::{a_forced_release_frees_whoever_holds, inspect_tells_holder_and_time_left};
use super::keep::{
    a_lease_that_another_handle_watches_is_not_extended,
    a_lease_that_another_handle_watches_is_passed_on,
    a_lease_that_is_not_held_can_be_neither_passed_on_nor_extended,
    a_lease_that_nobody_waits_for_may_be_extended, a_lease_that_nobody_waits_for_may_be_kept,
};
use super::lease::{
    a_batch_is_answered_item_by_item, a_release_frees_the_key_and_may_be_repeated,
    a_renewal_lengthens_and_never_shortens, a_renewal_never_creates_a_lease,
    a_stranger_can_neither_release_nor_renew, no_items_have_no_answers,
};
use super::queue::{
    contend_for_free_key_is_granted, every_kind_of_release_transfers,
    leave_after_transfer_passes_key_on, leave_removes_waiter, release_or_keep_enters_next_lease,
    release_transfers_key_to_first_waiter, repeats_change_no_place, silent_waiter_is_passed_over,
    unconfirmed_transfer_expires,
};
use crate::backend::Backend;

/// Runs every function of this module, one after the other.
///
/// `one` and `other` are two handles on one store.
///
/// # Panics
///
/// If the backend breaks a promise; the message says which.
pub async fn all<B: Backend>(one: &B, other: &B) {
    a_free_key_is_granted_and_a_held_one_is_busy(one, other).await;
    trying_again_under_one_lease_is_granted_again(one).await;
    a_release_frees_the_key_and_may_be_repeated(one).await;
    a_stranger_can_neither_release_nor_renew(one, other).await;
    a_renewal_never_creates_a_lease(one).await;
    a_renewal_lengthens_and_never_shortens(one).await;
    a_batch_is_answered_item_by_item(one, other).await;
    no_items_have_no_answers(one).await;
    counters_increase_over_grants(one, other).await;
    counters_increase_over_expiry_and_force(one, other).await;
    expiry_frees_the_key(one).await;
    one_of_many_contenders_is_granted(one, other).await;
    a_lease_that_nobody_waits_for_may_be_kept(one).await;
    a_lease_that_another_handle_watches_is_passed_on(one, other).await;
    a_lease_that_nobody_waits_for_may_be_extended(one).await;
    a_lease_that_another_handle_watches_is_not_extended(one, other).await;
    a_lease_that_is_not_held_can_be_neither_passed_on_nor_extended(one).await;
    a_watch_is_hinted_once_it_is_in_force(one).await;
    a_release_is_hinted_to_the_other_handle(one, other).await;
    a_forced_release_is_hinted_to_the_other_handle(one, other).await;
    every_watcher_of_a_key_is_hinted(one).await;
    inspect_tells_holder_and_time_left(one).await;
    a_forced_release_frees_whoever_holds(one, other).await;
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
