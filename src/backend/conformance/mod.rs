//! The contract of [`Backend`] in code: one public test function per promise.
//!
//! Run [`all`] against a backend of your own, with two handles on one store: clones where clones
//! share the leases, as two processes over one server would.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use tower_lock::backend::{Memory, conformance};
//!
//! let memory = Memory::new();
//! let other = memory.clone();
//! conformance::expiry_frees_the_key(&memory).await;
//! conformance::a_release_is_hinted_to_the_other_handle(&memory, &other).await;
//! # }
//! ```
//!
//! Every function works on keys of its own, so they may run side by side and against a store
//! that is in use. Time is Tokio's: a store in this process can be tested in paused time. Where
//! something may take a moment, it is asked for until a deadline has passed; nothing is slept for
//! in hope.

mod acquire;
mod all;
mod counter;
mod hint;
mod holder;
mod keep;
mod lease;
pub mod node;
mod queue;
mod support;

pub use acquire::{
    a_free_key_is_granted_and_a_held_one_is_busy, expiry_frees_the_key,
    one_of_many_contenders_is_granted, trying_again_under_one_lease_is_granted_again,
};
pub use all::all;
pub use counter::{counters_increase_over_expiry_and_force, counters_increase_over_grants};
pub use hint::{
    a_forced_release_is_hinted_to_the_other_handle, a_release_is_hinted_to_the_other_handle,
    a_watch_is_hinted_once_it_is_in_force, every_watcher_of_a_key_is_hinted,
};
pub use holder::{a_forced_release_frees_whoever_holds, inspect_tells_holder_and_time_left};
pub use keep::{
    a_lease_that_another_handle_watches_is_not_extended,
    a_lease_that_another_handle_watches_is_passed_on,
    a_lease_that_is_not_held_can_be_neither_passed_on_nor_extended,
    a_lease_that_nobody_waits_for_may_be_extended, a_lease_that_nobody_waits_for_may_be_kept,
};
pub use lease::{
    a_batch_is_answered_item_by_item, a_release_frees_the_key_and_may_be_repeated,
    a_renewal_lengthens_and_never_shortens, a_renewal_never_creates_a_lease,
    a_stranger_can_neither_release_nor_renew, no_items_have_no_answers,
};
pub use queue::{
    contend_for_free_key_is_granted, every_kind_of_release_transfers,
    leave_after_transfer_passes_key_on, leave_removes_waiter, release_or_keep_enters_next_lease,
    release_transfers_key_to_first_waiter, repeats_change_no_place, silent_waiter_is_passed_over,
    unconfirmed_transfer_expires,
};
