//! Acquires that are dropped.

use std::pin::pin;

use futures_util::poll;
use tokio::time::sleep;

use super::world::{FAULTS, LEASE, NODE_TIMEOUT, Nodes, fail};
use crate::support::engine::{MS, SECOND};
use crate::support::simulated::Fault;

/// An acquire that is dropped after any number of polls leaves no lease on any node. This includes slow
/// votes and a minority that hangs.
#[tokio::test(start_paused = true)]
async fn dropped_acquire_leaves_no_key() {
    for harm in [None, Some(Fault::Hung), Some(Fault::AnswerLost)] {
        for fresh in [true, false] {
            for polls in 0..200 {
                let case = format!("{harm:?}, fresh: {fresh}, {polls} polls");
                let world = if fresh {
                    Nodes::new(3)
                } else {
                    Nodes::used(3).await
                };
                let locks = world.manager();
                fail(world.minority(), harm);
                let ready = {
                    let mut acquire = pin!(locks.acquire("a").into_future());
                    let mut ready = false;
                    for _ in 0..polls {
                        ready = poll!(&mut acquire).is_ready();
                        if ready {
                            break;
                        }
                        sleep(MS).await;
                    }
                    ready
                };
                sleep(2 * NODE_TIMEOUT).await;
                fail(world.minority(), None);
                world.nothing_is_left_within(SECOND, "a", &case).await;
                assert!(locks.snapshot().is_idle(), "{case}: {locks:?}");
                if ready {
                    assert!(polls > 1, "it never waits");
                    break;
                }
                assert!(polls < 199, "never ready");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_and_entries_end_with_their_leases() {
    let tasks = || {
        let runtime = tokio::runtime::Handle::current();
        runtime.metrics().num_alive_tasks()
    };
    let before = tasks();
    let world = Nodes::used(5).await;
    let locks = world.manager();
    for fault in FAULTS {
        fail(world.minority(), fault);
        let guard = locks.acquire("a").await.unwrap();
        sleep(LEASE).await;
        drop(guard);
        sleep(SECOND).await;
        fail(world.minority(), None);
    }
    sleep(2 * LEASE).await;
    assert_eq!(tasks(), before);
}
