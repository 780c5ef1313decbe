//! Shared acquires of the plans.

use crate::draw::{Weights, draw};
use crate::run::run;

/// How many of the first seeds have a line with all of these parts in their traces.
pub(super) fn count(seeds: u64, parts: &[&str]) -> usize {
    let weights = Weights::without(&[]).unwrap();
    let has = |seed: &u64| {
        let trace = run(&draw(*seed, &weights), true).trace;
        (trace.iter()).any(|line| parts.iter().all(|part| line.contains(part)))
    };
    (0..seeds).filter(has).count()
}

#[test]
fn few_seeds_reject_upgrades() {
    let count = count(100, &["fails: Upgrade"]);
    assert!(count >= 5, "{count} of 100 seeds");
}

/// A process learns that a writer of another one waits.
#[test]
fn few_seeds_close_shared_leases() {
    let count = count(200, &["reply", "RenewedWanted"]);
    assert!(count >= 4, "{count} of 200 seeds");
}

#[test]
fn few_seeds_downgrade_guards() {
    for (outcome, fewest) in [("Ok(())", 20), ("InvalidOption", 2), ("Lost", 2)] {
        let count = count(200, &["the downgrade of", "ends:", outcome]);
        assert!(count >= fewest, "{outcome} in {count} of 200 seeds");
    }
}
