//! What is sent to the store.

use super::{assert_finds, item, lease};
use crate::plan::Command;
use crate::violation::Invariant;

#[tokio::test(start_paused = true)]
async fn checker_finds_renewal_after_release() {
    assert_finds(Invariant::RenewedAfterRelease, async |history, fault| {
        let lease = lease(1, 1);
        (history.send(0, Command::Acquire, item(lease, 1_000))).await;
        if fault {
            (history.send(0, Command::Release, item(lease, 0))).await;
        }
        (history.send(0, Command::Renew, item(lease, 1_000))).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_renewal_after_loss() {
    assert_finds(Invariant::RenewedAfterLoss, async |history, fault| {
        history.renewed_guard(0).await;
        let lease = history.lease();
        if fault {
            history.drop_unseen();
        }
        (history.send(0, Command::Renew, item(lease, 1_000))).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_storm_of_attempts() {
    assert_finds(Invariant::Bounds, async |history, fault| {
        for number in 0..40 {
            let attempt = item(lease(1, number), 1_000);
            drop((history.environment).send(0, Command::Acquire, vec![attempt]));
            history.advance(if fault { 5 } else { 100 }).await;
        }
    })
    .await;
}
