//! The order of waiters. A store without a queue passes, because its waiters compete.

mod places;
mod transfers;
pub(super) mod waiter;

pub use places::{
    contend_for_free_key_is_granted, expiry_serves_first_waiter, leave_removes_waiter,
    leave_returns_one_result_per_lease, polling_waiter_is_served_in_order,
    release_or_keep_enters_next_lease, repeats_change_no_place, silent_waiter_is_passed_over,
};
pub use transfers::{
    every_kind_of_release_transfers, leave_after_transfer_passes_key_on,
    release_transfers_key_to_first_waiter, transferred_key_is_reserved_for_its_waiter,
    unconfirmed_transfer_expires,
};
