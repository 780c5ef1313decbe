//! The contract of [`Backend`](super::Backend) in code: one test function per promise.
//!
//! Run [`all`] against your own backend, with two handles on one store. The handles are clones if clones
//! share their leases. Otherwise they are two clients of one server.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use tower_lock::backend::conformance;
//! use tower_lock::Memory;
//!
//! let memory = Memory::new();
//! let other = memory.clone();
//! conformance::run("expired_lease_frees_key", &memory, &other).await;
//! conformance::all(&memory, &other).await;
//! # }
//! ```
//!
//! [`run`] runs one function alone, and [`FUNCTIONS`] has their names. Each function uses fresh keys. Functions can
//! therefore run concurrently, and against a store that is in use. The functions measure Tokio's time, so a store in this process can be tested in paused time. They
//! poll with a deadline where an effect may be delayed.
//!
//! # Several modes
//!
//! These functions test the promises of shared leases, permits and downgrades. A backend without them passes.
//!
//! | promise | functions |
//! |---|---|
//! | exclusive leases, shared leases and permits exclude each other | `shared_and_exclusive_leases_exclude_each_other`, `permits_exclude_leases_of_other_modes`, `downgraded_lease_is_shared` |
//! | a permit is granted only while fewer than its limit hold the key | `permits_up_to_limit_hold_key_together`, `each_permit_obeys_its_own_limit`, `concurrent_permits_stay_within_limit` |
//! | the key is held until its last lease ends, and is free after that | `shared_lease_expires_by_itself`, `remaining_ttl_is_that_of_latest_permit` |
//! | a renewal extends no other lease | `shared_lease_expires_by_itself`, `expired_permit_frees_only_its_place` |
//! | counters increase from one mode to the next | `counters_of_both_modes_increase`, `counters_of_permits_increase`, `counter_of_downgraded_lease_increases` |
//! | a waiting exclusive lease stops later shared leases and permits | `waiting_exclusive_lease_stops_shared_ones`, `waiting_shared_leases_are_served_together`, `waiting_lease_of_other_mode_stops_permits`, `downgrade_admits_waiting_shared_leases` |
//!
//! The engine is responsible for re-entry, for rejected upgrades, and for the loss of all holds of a lost lease.

mod acquire;
mod all;
mod counter;
mod downgrade;
mod hint;
mod holder;
mod keep;
mod lease;
mod node;
mod permits;
mod queue;
mod shared;
mod support;

pub use all::{FUNCTIONS, all, run};
pub use node::all_of_node;
