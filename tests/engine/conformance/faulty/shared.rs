//! Faults of shared leases.

use super::Fault::*;
use super::Faulty;

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is held and was granted")]
async fn exclusive_lease_beside_shared_ones_is_detected() {
    Faulty::new(SharedNoObstacle)
        .runs("shared_and_exclusive_leases_exclude_each_other")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has expired")]
async fn revived_shared_lease_is_detected() {
    Faulty::new(Revived)
        .runs("shared_lease_expires_by_itself")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "follows")]
async fn counter_of_earlier_shared_lease_is_detected() {
    Faulty::new(SharedOfOneCounter)
        .runs("counters_of_both_modes_increase")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room")]
async fn overtaking_shared_lease_is_detected() {
    Faulty::new(SharedOvertakes)
        .runs("waiting_exclusive_lease_stops_shared_ones")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has ended")]
async fn shared_lease_after_force_is_detected() {
    Faulty::new(Revived)
        .runs("forced_release_ends_shared_leases")
        .await;
}
