//! Tests of the simulation itself.

mod classes;
mod deadlines;
mod kept;
mod outsiders;
mod permits;
mod releases;
mod shared;

use tower_lock::backend::Mode;

use crate::draw::{TRANSFER_TTL, Weights, draw};
use crate::plan::{
    self, Acquire, Actor, Event, Fate, Manager, Messages, Plan, Release, Step, Wait, What,
};
use crate::run::run;
use crate::shrink::shrink;
use crate::store::{Item, Outcome, Store};
use crate::time::{MS, SECOND};
use crate::violation::{Invariant, Violation};

#[test]
fn seed_gives_same_trace_twice() {
    let weights = Weights::without(&[]).unwrap();
    for seed in 0..50 {
        let plan = draw(seed, &weights);
        let (one, two) = (run(&plan, true), run(&plan, true));
        let different = one
            .trace
            .iter()
            .zip(&two.trace)
            .find(|(one, two)| one != two);
        assert_eq!(different, None, "seed {seed}");
        assert_eq!(one.trace.len(), two.trace.len(), "seed {seed}");
        assert_eq!(one.polls, two.polls, "seed {seed}");
    }
}

#[test]
fn unknown_class_is_rejected() {
    assert!(Weights::without(&["idle", "ilde"]).is_err());
}

pub fn plan() -> Plan {
    let manager = Manager {
        runtimes: 1,
        fixed: None,
        watchdog: 3_000,
        keep: 0,
        max_waiters: 65_536,
        max_waiters_per_key: 1_024,
    };
    Plan {
        seed: 1,
        length: 2_000,
        keys: 1,
        delay: (1, 1),
        grouped: false,
        queue: false,
        transfer_ttl: TRANSFER_TTL,
        lingers: false,
        messages: Messages::PROMPT,
        managers: vec![manager.clone(), manager],
        actors: Vec::new(),
        outsiders: Vec::new(),
        events: Vec::new(),
    }
}

pub fn acquire() -> Acquire {
    Acquire {
        keys: vec![0],
        shared: Vec::new(),
        permits: None,
        owner: plan::Owner::Fresh,
        wait: Wait::For(1_000),
        lease: None,
        max_hold: None,
        fate: Fate::Awaited,
    }
}

/// Returns an actor in the first runtime of a process.
fn actor(manager: usize, start: u64, steps: Vec<Step>) -> Actor {
    Actor {
        manager,
        runtime: 0,
        start,
        steps,
    }
}

fn item(manager: u128, ttl: i64) -> Item {
    let manager = uuid::Uuid::from_u128(manager);
    Item {
        key: 0,
        lease: Some(tower_lock::backend::LeaseId::new(manager, 1)),
        mode: Mode::Exclusive,
        limit: 0,
        ttl,
        listens: false,
        next: None,
        counters: 1,
    }
}

#[test]
fn store_keeps_contract() {
    let mut store = Store::default();
    let acquire = plan::Command::Acquire;
    let mut execute = |command, item: &Item, now| store.execute(command, item, now, now);
    let (one, two) = (item(1, SECOND), item(2, SECOND));
    let Outcome::Granted { counter } = execute(acquire, &one, 0) else {
        panic!("not granted")
    };
    assert_eq!(execute(acquire, &two, MS), Outcome::Busy { ttl: 999 * MS });
    assert_eq!(execute(plan::Command::Renew, &two, MS), Outcome::NotHeld);
    assert_eq!(execute(plan::Command::Release, &two, MS), Outcome::NotHeld);
    assert_eq!(
        execute(plan::Command::Renew, &one, 500 * MS),
        Outcome::Renewed
    );
    let busy = Outcome::Busy { ttl: 500 * MS };
    assert_eq!(execute(acquire, &two, SECOND), busy);
    // Expired: renewed no more, and free.
    let expired = 1_500 * MS;
    assert_eq!(
        execute(plan::Command::Renew, &one, expired),
        Outcome::NotHeld
    );
    let Outcome::Granted { counter: later } = execute(acquire, &two, expired) else {
        panic!("not granted")
    };
    assert!(later > counter);
    let token = i64::try_from(later * 256 + 3).unwrap();
    assert_eq!(store.lease_of(0, token), two.lease);
}

#[test]
fn shrinking_drops_what_does_not_matter() {
    let mut plan = plan();
    let hold = vec![
        Step::Acquire(acquire()),
        Step::Pause(20),
        Step::Release(Release::Awaited),
    ];
    for manager in [0, 1, 0] {
        plan.actors.push(Actor {
            manager,
            runtime: 0,
            start: 5,
            steps: hold.clone(),
        });
    }
    plan.events.push(Event {
        at: 30,
        what: What::NoHints { pause: 100 },
    });
    let first = Violation {
        invariant: Invariant::Panic,
        what: String::new(),
    };
    let (shrunk, _) = shrink(plan, first, &|plan| {
        let steps = plan.actors.iter().flat_map(|actor| &actor.steps);
        let fails = steps.filter(|step| matches!(step, Step::Pause(_))).count() > 1;
        fails.then(|| Violation {
            invariant: Invariant::Panic,
            what: String::new(),
        })
    });
    assert_eq!(shrunk.actors.len(), 2);
    assert!(shrunk.events.is_empty());
    assert!(shrunk.actors.iter().all(|actor| actor.steps.len() == 1));
}
