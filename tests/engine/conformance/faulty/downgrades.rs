//! Faults of downgrades.

use tower_lock::backend::conformance;

use super::Fault::*;
use super::Faulty;

#[tokio::test(start_paused = true)]
#[should_panic(expected = "should be free and is busy")]
async fn downgrade_without_effect_is_detected() {
    let store = Faulty::new(DowngradeIgnored);
    conformance::downgraded_lease_is_shared(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is next")]
async fn downgrade_that_admits_no_reader_is_detected() {
    let store = Faulty::new(DowngradeIgnored);
    conformance::downgrade_admits_waiting_shared_leases(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "left: NotHeld")]
async fn downgrade_in_two_steps_is_detected() {
    let store = Faulty::new(DowngradeInSteps);
    conformance::downgrade_admits_waiting_shared_leases(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "1 follows")]
async fn counter_of_earlier_downgrade_is_detected() {
    let store = Faulty::new(DowngradesOfOneCounter);
    conformance::counter_of_downgraded_lease_increases(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "does not hold")]
async fn downgrade_of_absent_lease_is_detected() {
    let store = Faulty::new(DowngradeCreates);
    conformance::downgrade_without_lease_changes_nothing(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "are left after 300ms")]
async fn downgrade_that_cuts_its_lease_is_detected() {
    let store = Faulty::new(DowngradeInSteps);
    conformance::downgrade_extends_and_does_not_shorten_lease(&store, &store.clone()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "are left after 60s")]
async fn downgrade_without_extension_is_detected() {
    let store = Faulty::new(DowngradeKeepsTtl);
    conformance::downgrade_extends_and_does_not_shorten_lease(&store, &store.clone()).await;
}
