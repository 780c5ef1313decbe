use std::time::Duration;

use tokio::runtime::{self, Builder};

use super::*;
use crate::backend::{Erased, Memory};
use crate::lock::clock::{Moment, Span};
use crate::lock::engine::options::Options;
use crate::lock::tests::{Slow, key, number};

fn runtime() -> runtime::Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

#[test]
fn ended_set_runtime_keeps_no_leases() {
    let backend = Erased::new(Memory::new());
    let ends = runtime();
    let entered = ends.enter();
    let set = crate::task::Runtime::current();
    drop(entered);
    let engine = Arc::new(Engine::new(backend, Options::default(), set));
    drop(ends);
    for lease in 1..=2 {
        let ttl = Span::new(Duration::from_secs(30));
        engine.release_until_confirmed(&key(), number(lease), ttl);
    }
    assert_eq!(engine.unconfirmed(), 0);
}

#[tokio::test(start_paused = true)]
async fn failed_lease_delays_only_its_key() {
    let backend = Slow {
        refuses_release_of: Some(2),
        ..Slow::default()
    };
    let engine = Arc::new(Engine::new(Erased::new(backend), Options::default(), None));
    let home = &engine.home;
    let now = Moment::now();
    let other = LockKey::new("other");
    for (key, lease) in [(&key(), 1), (&key(), 2), (&other, 3)] {
        let until = now + Duration::from_secs(30);
        let lease = UnknownLease::attempted(number(lease), until);
        home.unconfirmed.add(key.clone(), 0, lease);
    }
    let Step::Release(group, leases) = home.unconfirmed.next_step(now) else {
        panic!("all are due");
    };
    release(Arc::clone(&engine), group, leases).await;
    assert_eq!(home.unconfirmed.len(), 1);
    let next = home.unconfirmed.next_step(Moment::now());
    assert!(matches!(next, Step::Wait(Some(_))), "{next:?}");
}
