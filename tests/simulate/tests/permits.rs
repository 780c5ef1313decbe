//! Permits of the plans.

use super::shared::count;

#[test]
fn few_seeds_find_permits_full() {
    let count = count(100, &["fails: Full"]);
    assert!(count >= 5, "{count} of 100 seeds");
}

#[test]
fn few_seeds_reject_other_modes_of_owner() {
    let count = count(300, &["fails: KeyConflict"]);
    assert!(count >= 2, "{count} of 300 seeds");
}
