//! What only a whole run shows.

use super::{MOST_POLLS, Ran, Simulation, run};
use crate::plan::{Actor, Command, Plan, Release, Step};
use crate::store::Item;
use crate::tests::{acquire, plan};
use crate::time::SECOND;
use crate::violation::Invariant;

/// An actor that holds the key once.
fn plan_of_hold(manager: usize) -> Plan {
    let mut plan = plan();
    plan.actors.push(Actor {
        manager,
        runtime: 0,
        start: 1,
        steps: vec![Step::Acquire(acquire()), Step::Release(Release::Awaited)],
    });
    plan
}

fn invariant(ran: &Ran) -> Option<Invariant> {
    ran.violation.as_ref().map(|violation| violation.invariant)
}

#[test]
fn checker_finds_panic() {
    // There is no such process.
    assert_eq!(
        invariant(&run(&plan_of_hold(2), false)),
        Some(Invariant::Panic)
    );
    assert_eq!(invariant(&run(&plan_of_hold(1), false)), None);
}

#[tokio::test(start_paused = true)]
async fn checker_finds_endless_polls() {
    for (polls, expected) in [(MOST_POLLS, Some(Invariant::Livelock)), (0, None)] {
        let mut simulation = Simulation::new(plan_of_hold(0), false);
        simulation.polls = polls;
        assert_eq!(invariant(&simulation.run().await), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_key_left_behind() {
    for (ttl, expected) in [(60, Some(Invariant::LeftBehind)), (1, None)] {
        let simulation = Simulation::new(plan_of_hold(0), false);
        let item = Item {
            // No caller waits for it.
            key: 1,
            lease: Some(tower_lock::backend::LeaseId::new(uuid::Uuid::nil(), 1)),
            mode: tower_lock::backend::Mode::Exclusive,
            limit: 0,
            ttl: ttl * SECOND,
            listens: false,
            next: None,
            counters: 1,
        };
        {
            let mut store = simulation.environment.store.lock().unwrap();
            store.execute(Command::Acquire, &item, 0, 0);
        }
        assert_eq!(invariant(&simulation.run().await), expected);
    }
}
