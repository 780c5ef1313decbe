//! Exclusion, validity, losses, tokens and counts.

use super::{History, assert_finds};
use tower_lock::backend::Mode;

use crate::plan::Acquire;
use crate::seen::Largest;
use crate::store::Store;
use crate::tests::acquire;
use crate::violation::Invariant;
use crate::wire::key;

fn asks_for_lease(lease: u64) -> Acquire {
    Acquire {
        lease: Some(lease),
        ..acquire()
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_overlap() {
    assert_finds(Invariant::Exclusion, async |history, fault| {
        let one = history.renewed_guard(0).await;
        if fault {
            history.free();
        } else {
            history.environment.released(one, "is dropped");
            history.drop_unseen();
        }
        history.renewed_guard(1).await;
        history.environment.check_exclusion(&history.seen());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_without_lease() {
    assert_finds(Invariant::Validity, async |history, fault| {
        history.renewed_guard(0).await;
        if fault {
            let mut store = history.environment.store.lock().unwrap();
            store.restart(history.environment.now());
            // As if the store had not lost it.
            for record in store.records.values_mut() {
                record.broken = false;
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_valid_beyond_lease() {
    assert_finds(Invariant::Validity, async |history, fault| {
        history.renewed_guard(0).await;
        let lease = history.lease();
        let mut store = history.environment.store.lock().unwrap();
        store.records.get_mut(&lease).unwrap().valid_until -= i64::from(fault);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_held_after_loss() {
    assert_finds(Invariant::Loss, async |history, fault| {
        history.renewed_guard(0).await;
        history.seen().guards[0].lost = fault.then_some(0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_held_after_report() {
    assert_finds(Invariant::Loss, async |history, fault| {
        let id = history.renewed_guard(0).await;
        if fault {
            history.environment.loss_reported(id);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_held_after_force() {
    let permit = Acquire {
        permits: Some(2),
        ..acquire()
    };
    for asked in [acquire(), permit] {
        assert_finds(Invariant::Loss, async |history, fault| {
            history.guard(0, None, &asked).await;
            history.advance(1).await;
            let start = history.environment.now();
            if !fault {
                let forced = history.managers[0].force_release(key(0));
                assert!(history.drive(forced).await.unwrap());
            }
            history.environment.check_forced(0, 0, start);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_loss_without_report() {
    assert_finds(Invariant::Loss, async |history, fault| {
        history.guard(0, Some(100), &asks_for_lease(100)).await;
        history.observe();
        history.advance(200).await;
        let guard = &mut history.seen().guards[0];
        guard.reported = (!fault).then_some(guard.valid_until);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_hold_beyond_max_hold() {
    assert_finds(Invariant::HeldTooLong, async |history, fault| {
        let max_hold = fault.then_some(20);
        let asked = Acquire {
            max_hold,
            ..acquire()
        };
        history.guard(0, None, &asked).await;
        history.advance(100).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_hold_beyond_fixed_lease() {
    assert_finds(Invariant::HeldTooLong, async |history, fault| {
        let lease = if fault { 20 } else { 200 };
        history.guard(0, None, &asks_for_lease(lease)).await;
        history.advance(100).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_grant_of_lost_guard() {
    assert_finds(Invariant::LostEarly, async |history, fault| {
        let asked = asks_for_lease(100);
        let (waiter, guard) = history.acquire(0, Some(100), &asked).await;
        history.advance(if fault { 200 } else { 10 }).await;
        history.granted(&waiter, &asked, guard);
    })
    .await;
}

async fn loses_early(history: &History, asked: &Acquire, fault: bool) {
    history.guard(0, asked.lease, asked).await;
    if fault {
        history.drop_unseen();
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_early_loss_of_renewed_guard() {
    assert_finds(Invariant::LostEarly, async |history, fault| {
        loses_early(history, &acquire(), fault).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_early_loss_of_fixed_lease() {
    assert_finds(Invariant::LostEarly, async |history, fault| {
        loses_early(history, &asks_for_lease(1_000), fault).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_wrong_hold_count() {
    assert_finds(Invariant::HoldCount, async |history, fault| {
        history.renewed_guard(0).await;
        for group in history.seen().groups.values_mut() {
            group.live += usize::from(fault);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_unknown_token() {
    assert_finds(Invariant::Fencing, async |history, fault| {
        let (waiter, guard) = history.acquire(0, None, &acquire()).await;
        if fault {
            *history.environment.store.lock().unwrap() = Store::default();
        }
        history.granted(&waiter, &acquire(), guard);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_token_out_of_order() {
    assert_finds(Invariant::Fencing, async |history, fault| {
        let (waiter, guard) = history.acquire(0, None, &acquire()).await;
        let token = guard.fencing_token().get();
        let last = token - i64::from(!fault);
        let mut last_of = Largest::default();
        last_of.raise(Mode::Exclusive, last);
        history.seen().tokens.insert(0, last_of);
        history.granted(&waiter, &acquire(), guard);
    })
    .await;
}
