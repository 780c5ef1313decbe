use std::time::Duration;

use tokio::runtime::{self, Builder};
use tokio::time::sleep;

use super::*;
use crate::backend::{Erased, Memory};
use crate::lock::clock::Span;
use crate::lock::engine::options::Options;
use crate::lock::tests::{SECOND, Slow, key, number};

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
    let ttl = Span::new(Duration::from_secs(30));
    let other = LockKey::new("other");
    for (key, lease) in [(&key(), 1), (&key(), 2), (&other, 3)] {
        engine.release_until_confirmed(key, number(lease), ttl);
    }
    sleep(SECOND).await;
    assert_eq!(engine.unconfirmed(), 1);
}

/// The manager has neither a handle nor a lane. Its store is unavailable for a while.
#[tokio::test(start_paused = true)]
async fn lease_keeps_manager_until_it_is_released() {
    let engine = Arc::new(Engine::new(
        Erased::new(Slow {
            refuses_release_of: Some(1),
            ..Slow::default()
        }),
        Options::default(),
        None,
    ));
    let left = Arc::downgrade(&engine);
    for lease in 1..=2 {
        let ttl = Span::new(lease * 30 * SECOND);
        engine.release_until_confirmed(&key(), number(lease.into()), ttl);
    }
    drop(engine);
    sleep(20 * SECOND).await;
    assert_eq!(left.upgrade().map(|it| it.unconfirmed()), Some(1));
    sleep(20 * SECOND).await;
    assert!(left.upgrade().is_none(), "it must have expired");
}
