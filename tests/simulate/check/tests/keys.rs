//! Leases and places that nothing needs.

use super::{assert_finds, assert_finds_in, item, lease};
use crate::environment::OUTSIDE;
use crate::plan::{Acquire, Command, Plan, Wait};
use crate::tests::{acquire, plan};
use crate::violation::Invariant;

#[tokio::test(start_paused = true)]
async fn checker_finds_lease_without_guard() {
    assert_finds(Invariant::CleanUp, async |history, fault| {
        // The runtime that sends the acquire has to release its lease.
        history.environment.set_current(0, 0);
        (history.send(0, Command::Acquire, item(lease(1, 1), 10_000))).await;
        history.environment.set_current(OUTSIDE, OUTSIDE);
        history.observe();
        if !fault {
            (history.send(0, Command::Release, item(lease(1, 1), 0))).await;
        }
        history.advance(2_000).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_place_without_waiter() {
    let plan = Plan {
        queue: true,
        ..plan()
    };
    assert_finds_in(plan, Invariant::CleanUp, async |history, fault| {
        let asked = Acquire {
            wait: Wait::Forever,
            ..acquire()
        };
        // It holds the key, and is not polled.
        let holder = history.environment.acquire_starts(1, 0, &asked, None);
        history.environment.acquire_stalls(holder);
        (history.send(1, Command::Acquire, item(lease(2, 1), 10_000))).await;
        (history.send(0, Command::Contend, item(lease(1, 1), 10_000))).await;
        if !fault {
            history.environment.acquire_starts(0, 0, &asked, None);
        }
        history.observe();
        history.advance(1_500).await;
    })
    .await;
}
