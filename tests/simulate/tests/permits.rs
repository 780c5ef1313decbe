//! Permits of the plans.

use super::shared::count;
use super::{acquire, actor, plan};
use crate::plan::{Acquire, Owner, Step, Wait};
use crate::run::run;

#[test]
fn few_seeds_find_permits_full() {
    let count = count(100, &["fails: PermitsExhausted"]);
    assert!(count >= 5, "{count} of 100 seeds");
}

#[test]
fn few_seeds_reject_other_modes_of_owner() {
    let count = count(300, &["fails: KeyConflict"]);
    assert!(count >= 2, "{count} of 300 seeds");
}

/// One owner asks for a permit below 4, with another key that it loses, and for one below 1. The permit that was granted
/// below 4 is for both acquires, and the second one keeps it.
#[test]
fn owner_keeps_permit_of_its_failed_acquire() {
    let permits = |keys: &[usize], limit, owner, wait| {
        Step::Acquire(Acquire {
            keys: keys.to_vec(),
            permits: Some(limit),
            owner,
            wait,
            ..acquire()
        })
    };
    let exclusive = Step::Acquire(Acquire {
        keys: vec![1],
        ..acquire()
    });
    let mut plan = plan();
    plan.seed = 247_334;
    plan.keys = 2;
    plan.delay = (3, 20);
    plan.queue = true;
    plan.managers.truncate(1);
    plan.managers[0].watchdog = 60;
    // The background work is blocked, too.
    plan.managers[0].fixed = Some(0);
    let one = Owner::Shared(1);
    plan.actors = vec![
        actor(0, 8, vec![exclusive, Step::Block(127)]),
        actor(0, 24, vec![permits(&[1], 1, one, Wait::Never)]),
        actor(0, 1, vec![permits(&[0, 1], 4, one, Wait::For(190))]),
        actor(0, 49, vec![permits(&[1], 2, Owner::Fresh, Wait::Never)]),
    ];
    let ran = run(&plan, true);
    let trace = ran.trace.join("\n");
    assert!(ran.violation.is_none(), "{:?}\n{trace}", ran.violation);
    for step in ["w1 fails: Lost", "w3 granted"] {
        assert!(trace.contains(step), "{trace}");
    }
}
