//! The clients outside the queue of the simulated store.

use super::{acquire, plan};
use crate::draw::{Weights, draw};
use crate::plan::{Actor, Outsider, Plan, Release, Step};
use crate::run::run;

/// Two processes that acquire the key again and again, and a client outside the queue.
fn busy() -> Plan {
    let mut plan = Plan {
        queue: true,
        outsiders: vec![Outsider {
            key: 0,
            start: 10,
            holds: 5,
            hold: 10,
            pause: 5,
        }],
        ..plan()
    };
    for manager in 0..2 {
        let hold = [
            Step::Acquire(acquire()),
            Step::Pause(5),
            Step::Release(Release::Awaited),
        ];
        plan.actors.push(Actor {
            manager,
            runtime: 0,
            start: 1,
            steps: hold.into_iter().cycle().take(60).collect(),
        });
    }
    plan
}

#[test]
fn client_outside_has_turns_between_processes() {
    let ran = run(&busy(), true);
    assert!(ran.violation.is_none(), "{:?}", ran.violation);
    let count = |text| ran.trace.iter().filter(|line| line.contains(text)).count();
    assert_eq!(count("outside: Release"), 5);
    assert!(count("takes effect: Ok(LeftToOthers)") >= 5);
}

/// The engine receives this outcome in some of the default seeds.
#[test]
fn few_seeds_leave_keys_to_clients_outside() {
    let weights = Weights::without(&[]).unwrap();
    let leaves = |seed: &u64| {
        let trace = run(&draw(*seed, &weights), true).trace;
        (trace.iter()).any(|line| line.contains("reply") && line.contains("LeftToOthers"))
    };
    let count = (0..100).filter(leaves).count();
    assert!(count >= 4, "{count} of 100 seeds");
}
