//! Faults of permits.

use super::Fault::*;
use super::Faulty;

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn permit_above_limit_is_detected() {
    Faulty::new(PermitTooMany)
        .runs("permits_up_to_limit_hold_key_together")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the limit is 3")]
async fn race_for_too_many_permits_is_detected() {
    Faulty::new(PermitTooMany)
        .runs("concurrent_permits_stay_within_limit")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "and is busy for")]
async fn common_limit_of_permits_is_detected() {
    Faulty::new(PermitsOfOneLimit)
        .runs("each_permit_obeys_its_own_limit")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn exclusive_lease_beside_permits_is_detected() {
    Faulty::new(PermitsNoObstacle)
        .runs("permits_exclude_leases_of_other_modes")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has expired")]
async fn revived_permit_is_detected() {
    Faulty::new(Revived)
        .runs("expired_permit_frees_only_its_place")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "of 60s")]
async fn ttl_of_other_permit_is_detected() {
    Faulty::new(FirstExpiry)
        .runs("remaining_ttl_is_that_of_latest_permit")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is held")]
async fn forced_release_of_all_permits_is_detected() {
    Faulty::new(ForceEndsAll)
        .runs("forced_release_ends_one_permit_or_all")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "follows")]
async fn counter_of_earlier_permit_is_detected() {
    Faulty::new(PermitsOfOneCounter)
        .runs("counters_of_permits_increase")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn overtaking_permit_is_detected() {
    Faulty::new(PermitsOvertake)
        .runs("waiting_permits_are_served_in_order")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn permit_before_other_mode_is_detected() {
    Faulty::new(PermitsOvertake)
        .runs("waiting_lease_of_other_mode_stops_permits")
        .await;
}
