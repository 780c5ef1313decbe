//! Tests of the simulation itself.

use std::sync::{Arc, Mutex};

use tower_lock::LockManager;

use crate::draw::{TRANSFER_TTL, Weights, draw};
use crate::environment::Environment;
use crate::plan::{
    self, Acquire, Actor, Event, Fate, Manager, Messages, Plan, Release, Step, Wait, What,
};
use crate::run::run;
use crate::shrink::shrink;
use crate::store::{Item, Outcome, Store};
use crate::time::{MS, SECOND};
use crate::violation::{Invariant, Violation};
use crate::wire::{Wire, key};

#[test]
fn seed_gives_same_trace_twice() {
    let weights = Weights::without(&[]).unwrap();
    for seed in 0..200 {
        let plan = draw(seed, &weights);
        let (one, two) = (run(&plan, true), run(&plan, true));
        let different = one
            .trace
            .iter()
            .zip(&two.trace)
            .find(|(one, two)| one != two);
        assert_eq!(different, None, "seed {seed}");
        assert_eq!(one.polls, two.polls, "seed {seed}");
    }
}

#[test]
fn unknown_class_is_rejected() {
    assert!(Weights::without(&["idle", "ilde"]).is_err());
}

fn plan() -> Plan {
    let manager = Manager {
        runtimes: 1,
        watchdog: 3_000,
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
        messages: Messages::PROMPT,
        managers: vec![manager.clone(), manager],
        actors: Vec::new(),
        events: Vec::new(),
    }
}

fn acquire() -> Acquire {
    Acquire {
        keys: vec![0],
        owner: plan::Owner::Fresh,
        wait: Wait::For(1_000),
        lease: None,
        max_hold: None,
        fate: Fate::Awaited,
    }
}

fn item(manager: u128, ttl: i64) -> Item {
    let manager = uuid::Uuid::from_u128(manager);
    Item {
        key: 0,
        lease: Some(tower_lock::backend::LeaseId::new(manager, 1)),
        ttl,
        listens: false,
        next: None,
    }
}

/// Lets `test` act on two processes, each with a wire of its own to one store, and returns what
/// is violated then.
async fn violated<F>(
    test: impl FnOnce(Arc<Environment>, Vec<LockManager>) -> F,
) -> Option<Violation>
where
    F: Future<Output = ()>,
{
    let environment = Environment::new(plan(), false);
    let runtime = crate::executor::Runtime::new(1, 0, &environment.alarm);
    *environment.runtimes.lock().unwrap() = vec![vec![Arc::clone(&runtime)], vec![runtime]];
    let managers: Vec<_> = (0..2)
        .map(|manager| {
            let environment = Arc::clone(&environment);
            let wire = Wire {
                environment,
                manager,
            };
            LockManager::builder(wire).build().unwrap()
        })
        .collect();
    test(Arc::clone(&environment), managers.clone()).await;
    environment.observe(&managers);
    environment.violation()
}

/// Acquires, with the wire driven by hand.
async fn guard(
    environment: &Environment,
    locks: &LockManager,
    manager: usize,
) -> tower_lock::LockGuard {
    let request = acquire();
    let id = environment.acquire_starts(manager, 0, &request, None);
    let mut future = Box::pin(locks.acquire(key(0)).into_future());
    let guard = loop {
        while environment.happen() {}
        tokio::select! {
            biased;
            guard = &mut future => break guard.unwrap(),
            () = tokio::time::sleep(std::time::Duration::from_millis(1)) => {}
        }
    };
    let waiter = environment.acquire_ends(id, String::new).unwrap();
    environment.granted(&waiter, &request, &guard);
    guard
}

#[tokio::test(start_paused = true)]
async fn checker_accepts_one_guard() {
    let guards = Mutex::new(Vec::new());
    let violation = violated(|environment, managers| {
        let guards = &guards;
        async move {
            let one = guard(&environment, &managers[0], 0).await;
            guards.lock().unwrap().push(one);
        }
    });
    assert!(violation.await.is_none());
}

#[tokio::test(start_paused = true)]
async fn checker_finds_invented_overlap() {
    let guards = Mutex::new(Vec::new());
    let violation = violated(|environment, managers| {
        let guards = &guards;
        async move {
            let one = guard(&environment, &managers[0], 0).await;
            // The store frees the key without a notification.
            let lease = environment.store.lock().unwrap().held(environment.now())[0].1;
            let release = Item {
                key: 0,
                lease: Some(lease),
                ttl: 0,
                listens: false,
                next: None,
            };
            let now = environment.now();
            let freed = (environment.store.lock().unwrap()).execute(
                plan::Command::Release,
                &release,
                now,
                now,
            );
            assert!(matches!(freed, Outcome::Released { .. }));
            let two = guard(&environment, &managers[1], 1).await;
            environment.check_exclusion(&environment.seen.lock().unwrap());
            guards.lock().unwrap().extend([one, two]);
        }
    });
    let invariant = violation.await.map(|violation| violation.invariant);
    assert_eq!(invariant, Some(Invariant::Exclusion));
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_without_lease() {
    let guards = Mutex::new(Vec::new());
    let violation = violated(|environment, managers| {
        let guards = &guards;
        async move {
            let one = guard(&environment, &managers[0], 0).await;
            environment.store.lock().unwrap().restart(environment.now());
            // As if the store had not lost it.
            for record in environment.store.lock().unwrap().records.values_mut() {
                record.broken = false;
            }
            guards.lock().unwrap().push(one);
        }
    });
    let invariant = violation.await.map(|violation| violation.invariant);
    assert_eq!(invariant, Some(Invariant::Validity));
}

#[tokio::test(start_paused = true)]
async fn checker_finds_waiter_beyond_deadline() {
    let violation = violated(|environment, _managers| async move {
        environment.acquire_starts(0, 0, &acquire(), None);
        tokio::time::advance(std::time::Duration::from_millis(1_100)).await;
    });
    let invariant = violation.await.map(|violation| violation.invariant);
    assert_eq!(invariant, Some(Invariant::Deadline));
}

#[tokio::test(start_paused = true)]
async fn checker_finds_renewal_after_release() {
    let violation = violated(|environment, _managers| async move {
        drop(environment.send(0, plan::Command::Acquire, vec![item(1, SECOND)]));
        drop(environment.send(0, plan::Command::Release, vec![item(1, 0)]));
        drop(environment.send(0, plan::Command::Renew, vec![item(1, SECOND)]));
    });
    let invariant = violation.await.map(|violation| violation.invariant);
    assert_eq!(invariant, Some(Invariant::RenewedAfterRelease));
}

#[tokio::test(start_paused = true)]
async fn checker_finds_storm_of_attempts() {
    let violation = violated(|environment, _managers| async move {
        for _ in 0..40 {
            drop(environment.send(0, plan::Command::Acquire, vec![item(1, SECOND)]));
            tokio::time::advance(std::time::Duration::from_millis(5)).await;
        }
    });
    let invariant = violation.await.map(|violation| violation.invariant);
    assert_eq!(invariant, Some(Invariant::Bounds));
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
