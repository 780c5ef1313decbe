//! Faults of downgrades.

use super::Fault::*;
use super::Faulty;

#[tokio::test(start_paused = true)]
#[should_panic(expected = "should be free and is busy")]
async fn downgrade_without_effect_is_detected() {
    Faulty::new(DowngradeIgnored)
        .runs("downgraded_lease_is_shared")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is next")]
async fn downgrade_that_admits_no_reader_is_detected() {
    Faulty::new(DowngradeIgnored)
        .runs("downgrade_admits_waiting_shared_leases")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "left: NotHeld")]
async fn downgrade_in_two_steps_is_detected() {
    Faulty::new(DowngradeInSteps)
        .runs("downgrade_admits_waiting_shared_leases")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "1 follows")]
async fn counter_of_earlier_downgrade_is_detected() {
    Faulty::new(DowngradesOfOneCounter)
        .runs("counter_of_downgraded_lease_increases")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "does not hold")]
async fn downgrade_of_absent_lease_is_detected() {
    Faulty::new(DowngradeCreates)
        .runs("downgrade_without_lease_changes_nothing")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "are left after 300ms")]
async fn downgrade_that_cuts_its_lease_is_detected() {
    Faulty::new(DowngradeInSteps)
        .runs("downgrade_extends_and_does_not_shorten_lease")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "are left after 60s")]
async fn downgrade_without_extension_is_detected() {
    Faulty::new(DowngradeKeepsTtl)
        .runs("downgrade_extends_and_does_not_shorten_lease")
        .await;
}
