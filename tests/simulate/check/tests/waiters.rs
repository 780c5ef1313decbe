//! Deadlines, turns, bounds, and a free key.

use tokio::time::sleep;

use super::{assert_finds, assert_finds_in, item, lease};
use crate::plan::{Acquire, Actor, Command, Messages, Plan, Wait};
use crate::tests::{acquire, plan};
use crate::violation::Invariant;
use crate::wire::key;

fn waits_forever() -> Acquire {
    Acquire {
        wait: Wait::Forever,
        ..acquire()
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_waiter_beyond_deadline() {
    assert_finds(Invariant::Deadline, async |history, fault| {
        // Otherwise the key is free for too long.
        history.renewed_guard(1).await;
        history.environment.acquire_starts(0, 0, &acquire(), None);
        history.advance(if fault { 1_100 } else { 1_000 }).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_owner_waiting_beside_own_guard() {
    assert_finds(Invariant::Reentry, async |history, fault| {
        history.renewed_guard(0).await;
        let owner = history.seen().guards[0].owner;
        let other = history.managers[0].new_owner();
        let owner = if fault { owner } else { other };
        history
            .environment
            .acquire_starts(0, 0, &waits_forever(), Some(owner));
        history.advance(50).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_overtaken_waiter() {
    assert_finds(Invariant::Order, async |history, fault| {
        let first = (history.environment).acquire_starts(0, 0, &waits_forever(), None);
        if !fault {
            history.environment.acquire_ends(first, String::new);
        }
        history.renewed_guard(0).await;
    })
    .await;
}

/// A shutdown rejects a waiter without a deadline, and the next one may be polled first.
#[tokio::test(start_paused = true)]
async fn checker_finds_waiter_overtaken_without_shutdown() {
    assert_finds(Invariant::Order, async |history, fault| {
        (history.environment).acquire_starts(0, 0, &waits_forever(), None);
        history.seen().closing[0] = !fault;
        history.renewed_guard(0).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_place_left_by_waiting_process() {
    let plan = Plan {
        queue: true,
        ..plan()
    };
    assert_finds_in(plan, Invariant::Order, async |history, fault| {
        (history.send(1, Command::Acquire, item(lease(2, 1), 60_000))).await;
        history
            .environment
            .acquire_starts(0, 0, &waits_forever(), None);
        history.advance(1).await;
        (history.send(0, Command::Contend, item(lease(1, 1), 3_000))).await;
        let again = if fault { lease(1, 2) } else { lease(1, 1) };
        (history.send(0, Command::Contend, item(again, 3_000))).await;
    })
    .await;
}

/// Returns two actors without steps, because the checker skips a bound above the number of actors.
fn idle_actors() -> [Actor; 2] {
    [0, 1].map(|start| Actor {
        manager: 0,
        runtime: 0,
        start,
        steps: Vec::new(),
    })
}

#[tokio::test(start_paused = true)]
async fn checker_finds_more_waiters_than_bound() {
    let mut plan = plan();
    plan.managers[0].max_waiters = 1;
    plan.actors.extend(idle_actors());
    assert_finds_in(plan, Invariant::Bounds, async |history, fault| {
        history.renewed_guard(0).await;
        let waiters = (0..1 + usize::from(fault)).map(|_| {
            let waiter = history.managers[0].acquire(key(0)).wait_forever();
            Box::pin(waiter.into_future())
        });
        let mut waiters: Vec<_> = waiters.collect();
        for waiter in &mut waiters {
            assert!(futures_util::poll!(waiter).is_pending());
        }
        history.observe();
    })
    .await;
}

/// An acquire that is not polled waits beyond the bound of its key.
#[tokio::test(start_paused = true)]
async fn checker_finds_polled_waiter_beyond_bound_of_key() {
    let mut plan = plan();
    plan.managers[0].max_waiters_per_key = 1;
    plan.actors.extend(idle_actors());
    assert_finds_in(plan, Invariant::Bounds, async |history, fault| {
        history.renewed_guard(0).await;
        let waiters = (0..3).map(|_| {
            let waiter = history.managers[0].acquire(key(0)).wait_forever();
            Box::pin(waiter.into_future())
        });
        let mut waiters: Vec<_> = waiters.collect();
        for waiter in &mut waiters {
            assert!(futures_util::poll!(waiter).is_pending());
        }
        let id = (history.environment).acquire_starts(0, 0, &waits_forever(), None);
        if !fault {
            history.environment.acquire_stalls(id);
        }
        history.observe();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_more_waiters_of_key_than_bound() {
    let mut plan = plan();
    plan.managers[0].max_waiters_per_key = 1;
    plan.actors.extend(idle_actors());
    assert_finds_in(plan, Invariant::Bounds, async |history, fault| {
        history.renewed_guard(1).await;
        for _ in 0..1 + usize::from(fault) {
            (history.environment).acquire_starts(0, 0, &waits_forever(), None);
        }
        history.environment.check_waiters();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_waiter_of_free_key() {
    assert_finds(Invariant::Progress, async |history, fault| {
        if !fault {
            history.renewed_guard(1).await;
        }
        // What may have happened before the start would explain a delay.
        sleep(std::time::Duration::from_secs(2)).await;
        history
            .environment
            .acquire_starts(0, 0, &waits_forever(), None);
        history.observe();
        history.advance(150).await;
    })
    .await;
}

/// Without a notification, the waiter attempts after the backstop and a round trip.
#[tokio::test(start_paused = true)]
async fn checker_finds_waiter_beyond_backstop() {
    let mut plan = plan();
    plan.messages = Messages::LOST;
    assert_finds_in(plan, Invariant::Progress, async |history, fault| {
        (history.environment).acquire_starts(0, 0, &waits_forever(), None);
        history.observe();
        let bound = 1_100 + 2 * history.environment.plan.delay.1;
        history.advance(bound + if fault { 3 } else { 2 }).await;
    })
    .await;
}
