use std::time::Duration;

use tokio::runtime::{self, Builder};

use super::*;
use crate::backend::{Erased, Memory};
use crate::lock::clock::Span;
use crate::lock::options::Options;
use crate::lock::tests::{Slow, key, number};

fn runtime() -> runtime::Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

#[test]
fn leases_of_ended_runtime_are_resolved_in_another() {
    let backend = Erased::new(Memory::new());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let (ends, stays) = (runtime(), runtime());
    let home = |runtime: &runtime::Runtime| {
        let _entered = runtime.enter();
        engine.current_home().expect("a runtime with timers")
    };
    home(&stays);
    let ttl = Span::new(Duration::from_secs(30));
    engine.resolve(&key(), number(1), ttl, home(&ends));
    assert_eq!(engine.unresolved(), 1);
    drop(ends);
    assert_eq!(engine.unresolved(), 1, "in the other runtime");
}

#[test]
fn leases_of_last_runtime_are_resolved_in_next_one() {
    let backend = Erased::new(Memory::new());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let home = |runtime: &runtime::Runtime| {
        let _entered = runtime.enter();
        engine.current_home().expect("a runtime with timers")
    };
    let ends = runtime();
    let ttl = Span::new(Duration::from_secs(30));
    let ended = home(&ends);
    engine.resolve(&key(), number(1), ttl, ended);
    drop(ends);
    engine.resolve(&key(), number(2), ttl, ended);
    assert_eq!(engine.unresolved(), 2, "kept");
    let next = runtime();
    let next_home = engine.homes.get(home(&next)).expect("a known runtime");
    assert_eq!(next_home.unresolved.len(), 2);
    next.block_on(next_home.unresolved.finished());
    assert_eq!(engine.unresolved(), 0);
}

#[test]
fn expired_leases_without_runtime_are_dropped() {
    let backend = Erased::new(Memory::new());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let ends = runtime();
    let entered = ends.enter();
    let home = engine.current_home().expect("a runtime with timers");
    drop(entered);
    drop(ends);
    engine.resolve(&key(), number(1), Span::new(Duration::ZERO), home);
    engine.forget_expired();
    assert_eq!(engine.unresolved(), 0);
}

#[test]
fn ended_set_runtime_keeps_no_leases() {
    let backend = Erased::new(Memory::new());
    let ends = runtime();
    let entered = ends.enter();
    let set = crate::task::Runtime::current();
    drop(entered);
    let engine = Arc::new(Engine::new(backend, Options::default(), set));
    let home = engine.current_home().expect("the runtime that was set");
    drop(ends);
    for lease in 1..=2 {
        let ttl = Span::new(Duration::from_secs(30));
        engine.resolve(&key(), number(lease), ttl, home);
    }
    assert_eq!(engine.unresolved(), 0);
}

#[tokio::test(start_paused = true)]
async fn failed_lease_delays_only_its_key() {
    let backend = Slow {
        refuses_release_of: Some(2),
        ..Slow::default()
    };
    let engine = Arc::new(Engine::new(Erased::new(backend), Options::default(), None));
    let id = engine.current_home().expect("a runtime with timers");
    let home = engine.homes.get(id).expect("a known runtime");
    let now = Moment::now();
    let other = LockKey::new("other");
    for (key, lease) in [(&key(), 1), (&key(), 2), (&other, 3)] {
        let until = now + Duration::from_secs(30);
        (home.unresolved).add(key.clone(), UnknownLease::attempted(number(lease), until));
    }
    let Step::Release(leases) = home.unresolved.next_step(now) else {
        panic!("all are due");
    };
    release(&engine, &home, leases).await;
    assert_eq!(home.unresolved.len(), 1);
    let next = home.unresolved.next_step(Moment::now());
    assert!(matches!(next, Step::WaitUntil(_)), "{next:?}");
}
