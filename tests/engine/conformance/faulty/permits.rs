//! Faults of permits.

use tower_lock::backend::conformance;

use super::Fault::*;
use super::Faulty;

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn permit_above_limit_is_detected() {
    let store = Faulty::new(PermitTooMany);
    conformance::permits_up_to_limit_hold_key_together(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the limit is 3")]
async fn race_for_too_many_permits_is_detected() {
    let store = Faulty::new(PermitTooMany);
    conformance::concurrent_permits_stay_within_limit(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "and is busy for")]
async fn common_limit_of_permits_is_detected() {
    let store = Faulty::new(PermitsOfOneLimit);
    conformance::each_permit_obeys_its_own_limit(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn exclusive_lease_beside_permits_is_detected() {
    let store = Faulty::new(PermitsNoObstacle);
    conformance::permits_exclude_leases_of_other_modes(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has expired")]
async fn revived_permit_is_detected() {
    let store = Faulty::new(Revived);
    conformance::expired_permit_frees_only_its_place(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "of 60s")]
async fn ttl_of_other_permit_is_detected() {
    let store = Faulty::new(FirstExpiry);
    conformance::remaining_ttl_is_that_of_latest_permit(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is held")]
async fn forced_release_of_all_permits_is_detected() {
    let store = Faulty::new(ForceEndsAll);
    conformance::forced_release_ends_one_permit_or_all(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "follows")]
async fn counter_of_earlier_permit_is_detected() {
    let store = Faulty::new(PermitsOfOneCounter);
    conformance::counters_of_permits_increase(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn overtaking_permit_is_detected() {
    let store = Faulty::new(PermitsOvertake);
    conformance::waiting_permits_are_served_in_order(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has no room and was granted")]
async fn permit_before_other_mode_is_detected() {
    let store = Faulty::new(PermitsOvertake);
    conformance::waiting_lease_of_other_mode_stops_permits(&store, &store.clone()).await;
}
