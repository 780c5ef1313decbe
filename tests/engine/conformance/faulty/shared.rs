//! Faults of shared leases.

use tower_lock::backend::conformance;

use super::Fault::*;
use super::Faulty;

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is held and was granted")]
async fn exclusive_lease_beside_shared_ones_is_detected() {
    let store = Faulty::new(SharedNoObstacle);
    conformance::shared_and_exclusive_leases_exclude_each_other(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has expired")]
async fn revived_shared_lease_is_detected() {
    let store = Faulty::new(Revived);
    conformance::shared_lease_expires_by_itself(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "follows")]
async fn counter_of_earlier_shared_lease_is_detected() {
    let store = Faulty::new(SharedOfOneCounter);
    conformance::counters_of_both_modes_increase(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room")]
async fn overtaking_shared_lease_is_detected() {
    let store = Faulty::new(SharedOvertakes);
    conformance::waiting_exclusive_lease_stops_shared_ones(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has ended")]
async fn shared_lease_after_force_is_detected() {
    let store = Faulty::new(Revived);
    conformance::forced_release_ends_shared_leases(&store, &store.clone()).await;
}
