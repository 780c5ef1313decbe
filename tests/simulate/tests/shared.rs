//! Shared acquires of the plans.

use super::{acquire, actor, plan};
use crate::draw::{Weights, draw};
use crate::plan::{Acquire, Owner, Step};
use crate::run::run;

/// How many of the first seeds have a line with all of these parts in their traces.
pub(super) fn count(seeds: u64, parts: &[&str]) -> usize {
    count_each(seeds, [parts])[0]
}

fn count_each<const N: usize>(seeds: u64, lines: [&[&str]; N]) -> [usize; N] {
    let weights = Weights::without(&[]).unwrap();
    let mut counts = [0; N];
    for seed in 0..seeds {
        let trace = run(&draw(seed, &weights), true).trace;
        for (count, parts) in counts.iter_mut().zip(lines) {
            let has = |line: &String| parts.iter().all(|part| line.contains(part));
            *count += usize::from(trace.iter().any(has));
        }
    }
    counts
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
    let outcomes = [("Ok(())", 20), ("InvalidOption", 2), ("Lost", 2)];
    let lines = outcomes.map(|(outcome, _)| ["the downgrade of", "ends:", outcome]);
    let counts = count_each(200, lines.each_ref().map(|line| &line[..]));
    for ((outcome, fewest), count) in outcomes.into_iter().zip(counts) {
        assert!(count >= fewest, "{outcome} in {count} of 200 seeds");
    }
}

/// Another reader keeps the lease, so the owner gets the token of the holds that it lost, and a count of its own.
#[test]
fn owner_with_lost_holds_joins_shared_lease_again() {
    let shared = |keys: &[usize], owner, lease| {
        Step::Acquire(Acquire {
            keys: keys.to_vec(),
            shared: keys.to_vec(),
            owner,
            lease,
            ..acquire()
        })
    };
    let mut plan = plan();
    plan.keys = 2;
    plan.managers.truncate(1);
    plan.actors = vec![
        actor(
            0,
            1,
            vec![shared(&[0, 1], Owner::Fresh, None), Step::Pause(1_000)],
        ),
        actor(
            0,
            10,
            vec![
                shared(&[0], Owner::Fresh, Some(75)),
                shared(&[0, 1], Owner::Nested, Some(75)),
                Step::Pause(200),
                shared(&[0], Owner::Nested, None),
                Step::Pause(100),
            ],
        ),
    ];
    let ran = run(&plan, true);
    let grants = ran.trace.iter().filter(|line| line.contains("granted as"));
    assert_eq!(grants.count(), 4, "{:#?}", ran.trace);
    let violation = ran.violation.map(|violation| violation.what);
    assert_eq!(violation, None);
}
