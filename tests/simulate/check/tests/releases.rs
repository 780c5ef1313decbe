//! What `release` reports, and when.

use tower_lock::ErrorKind;

use super::{History, assert_finds, assert_finds_in, item};
use crate::executor::Runtime;
use crate::plan::{Command, Trouble};
use crate::tests::plan;
use crate::violation::Invariant;

/// Releases a guard, which the store no longer holds after `lost`. The release reports this outcome.
async fn released(history: &History, lost: bool, outcome: Result<(), ErrorKind>) {
    let id = history.renewed_guard(0).await;
    let lease = history.lease();
    let release = history.environment.release_starts(id);
    history.environment.released(id, "is released");
    if lost {
        let mut store = history.environment.store.lock().unwrap();
        store.restart(history.environment.now());
    }
    history.send(0, Command::Release, item(lease, 0)).await;
    history.environment.release_replied(release, &outcome);
    history.environment.release_ends(release, "ends");
}

#[tokio::test(start_paused = true)]
async fn checker_finds_success_of_absent_lease() {
    assert_finds(Invariant::ReleaseEnds, async |history, fault| {
        released(history, fault, Ok(())).await;
    })
    .await;
}

/// If the first of two releases has no reply, it may have ended the lease.
#[tokio::test(start_paused = true)]
async fn checker_finds_success_of_only_absent_release() {
    assert_finds(Invariant::ReleaseEnds, async |history, fault| {
        let id = history.renewed_guard(0).await;
        let lease = history.lease();
        let release = history.environment.release_starts(id);
        history.environment.released(id, "is released");
        if !fault {
            history.trouble(Trouble::RequestLost);
            history.send(0, Command::Release, item(lease, 0)).await;
        }
        {
            let mut store = history.environment.store.lock().unwrap();
            store.restart(history.environment.now());
        }
        history.send(0, Command::Release, item(lease, 0)).await;
        history.environment.release_replied(release, &Ok(()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_loss_of_released_lease() {
    assert_finds(Invariant::ReleaseEnds, async |history, fault| {
        released(history, !fault, Err(ErrorKind::Lost)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_success_of_lost_guard() {
    assert_finds(Invariant::ReleaseEnds, async |history, fault| {
        let id = history.renewed_guard(0).await;
        if fault {
            history.drop_unseen();
        }
        let release = history.environment.release_starts(id);
        history.environment.release_replied(release, &Ok(()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_endless_release() {
    assert_finds(Invariant::ReleaseEnds, async |history, fault| {
        let id = history.renewed_guard(0).await;
        let release = history.environment.release_starts(id);
        history.seen().releases[0].until = history.environment.now();
        history.advance(if fault { 800 } else { 600 }).await;
        history.observe();
        history.environment.release_ends(release, "ends");
    })
    .await;
}

/// The caller itself notices a suspend within a second.
#[tokio::test(start_paused = true)]
async fn checker_finds_endless_release_after_suspend() {
    let mut plan = plan();
    (plan.managers[0].runtimes, plan.managers[0].fixed) = (2, Some(1));
    assert_finds_in(plan, Invariant::ReleaseEnds, async |history, fault| {
        let ended = Runtime::new(2, 0, &history.environment.alarm);
        ended.stop();
        history.environment.runtimes.lock().unwrap()[0][1] = ended;
        let id = history.renewed_guard(0).await;
        let release = history.environment.release_starts(id);
        history.seen().releases[0].until = history.environment.now();
        history.advance(1).await;
        history.seen().resumed = history.environment.now();
        history.advance(if fault { 1_020 } else { 1_000 }).await;
        history.observe();
        history.environment.release_ends(release, "ends");
    })
    .await;
}
