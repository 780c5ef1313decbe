//! What is sent to the store.

use std::sync::Arc;

use tower_lock::Backend;
use tower_lock::backend::Release;

use super::{assert_finds, item, lease};
use crate::environment::Weather;
use crate::plan::{Command, Trouble};
use crate::time::MS;
use crate::violation::Invariant;
use crate::wire::{Wire, key};

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

/// A release whose reply is lost is sent again.
#[tokio::test(start_paused = true)]
async fn checker_finds_second_release() {
    assert_finds(Invariant::ReleasedTwice, async |history, fault| {
        let wire = Wire {
            environment: Arc::clone(&history.environment),
            manager: 0,
        };
        let id = history.renewed_guard(0).await;
        let leases = [Release::new(key(0), history.lease())];
        history.environment.released(id, true, "is released");
        if !fault {
            let awake = history.environment.awake();
            history.environment.add_weather(Weather {
                from: awake,
                until: awake + MS,
                manager: None,
                key: None,
                command: None,
                share: 100,
                kind: Trouble::ReplyLost,
            });
        }
        history.drive(wire.release(&leases)).await;
        history.drive(wire.release(&leases)).await;
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
