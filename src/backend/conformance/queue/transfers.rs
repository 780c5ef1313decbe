//! Transfers of released keys to waiters.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::waiter::{CONFIRM, Waiter, freed, passed_on, queue};
use crate::backend::conformance::support::{
    LONG, MARGIN, busy, definite, hinted, inspected, lease,
};
use crate::backend::{Backend, Contended, Hint, Hints, LeaseId, Release, Released};

/// Checks that a release transfers the key to the first waiter, which confirms it for its full TTL.
pub(crate) async fn release_transfers_key_to_first_waiter<B: Backend>(one: &B, other: &B) {
    let Some((holder, mut first, second)) = queue("queue-order", one, other).await else {
        return;
    };
    let newcomer = Waiter::new(other, &holder.key).await;
    while let Ok(Hint::Released) = hint_now(&mut first.hints).await {}
    assert_eq!(holder.release().await, Released::Transferred);
    let counter = first.expect_granted().await;
    // A store without notifications sends hints at intervals, too late for a confirmation.
    hinted(&mut first.hints, "the transfer").await;
    assert_eq!(newcomer.wait().await, Some(2));
    let left = inspected(one, &first.key).await.ttl;
    assert!(
        left > LONG / 2,
        "confirmed for {LONG:?}, and has {left:?} left"
    );
    passed_on(first.release().await);
    assert!(second.expect_granted().await > counter);
    passed_on(second.release().await);
    newcomer.expect_granted().await;
    freed(newcomer.release().await);
}

/// Checks that a transferred key can be acquired under the lease of the waiter only, that no other lease releases it,
/// and that no other waiter is notified of the transfer.
pub(crate) async fn transferred_key_is_reserved_for_its_waiter<B: Backend>(one: &B, other: &B) {
    let Some((holder, mut first, mut second)) = queue("queue-reserved", one, other).await else {
        return;
    };
    let outcome = holder.release().await;
    passed_on(outcome);
    if outcome == Released::Transferred {
        busy(one, &holder.key, lease()).await;
        busy(one, &holder.key, LeaseId::new(first.lease.manager(), 2)).await;
        assert_eq!(second.wait().await, Some(1));
        assert_eq!(second.release().await, Released::NotHeld);
    }
    first.expect_granted().await;
    hinted(&mut first.hints, "the transfer").await;
    while let Ok(hint) = hint_now(&mut second.hints).await {
        assert_eq!(hint, Hint::Released, "the hint of another waiter");
    }
    passed_on(first.release().await);
    second.expect_granted().await;
    freed(second.release().await);
}

/// Expects that a hint reports the transfer to this waiter.
pub(super) async fn notified<B: Backend>(waiter: &mut Waiter<'_, B>) {
    let own = Hint::transferred(waiter.lease);
    while hinted(&mut waiter.hints, "the transfer to a lease that listens").await != own {}
}

/// Checks that a waiter that leaves after the transfer releases the key to the next waiter.
pub(crate) async fn leave_after_transfer_passes_key_on<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-left", one, other).await else {
        return;
    };
    passed_on(holder.release().await);
    let outcome = first.leave().await;
    passed_on(outcome);
    assert_eq!(first.leave().await, Released::NotHeld);
    let left = second.leave().await;
    match outcome {
        // It was next after the turn.
        Released::LeftToOthers => assert_eq!(left, Released::NotHeld),
        _ => freed(left),
    }
    let next = Waiter::new(other, &holder.key).await;
    next.expect_granted().await;
    freed(next.release().await);
}

/// Checks that a transferred lease expires within 1.5 s unless it is confirmed, and that the next waiter is served.
pub(crate) async fn unconfirmed_transfer_expires<B: Backend>(one: &B, other: &B) {
    let Some((holder, _silent, second)) = queue("queue-unconfirmed", one, other).await else {
        return;
    };
    passed_on(holder.release().await);
    let deadline = Instant::now() + CONFIRM + MARGIN;
    while let Contended::Waiting { ttl, .. } = second.contend().await {
        assert!(ttl <= CONFIRM, "the transferred lease lasts for {ttl:?}");
        assert!(Instant::now() < deadline, "the transferred lease goes on");
        sleep(Duration::from_millis(50)).await;
    }
    freed(second.release().await);
}

/// Checks that a forced release transfers the key, and that a release of several keys transfers
/// each key.
pub(crate) async fn every_kind_of_release_transfers<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-force", one, other).await else {
        return;
    };
    definite(
        other.force_release(&holder.key, None).await,
        "force_release",
    );
    first.expect_granted().await;
    let Some((holder, third, _left)) = queue("queue-batch", one, other).await else {
        panic!("the other key has a queue");
    };
    let releases = [&first, &holder].map(|it| Release::new(it.key.clone(), it.lease));
    for outcome in one.release(&releases).await {
        passed_on(definite(outcome, "release"));
    }
    second.expect_granted().await;
    third.expect_granted().await;
    freed(second.leave().await);
    passed_on(third.leave().await);
}

/// Returns a hint that has arrived.
async fn hint_now(hints: &mut Hints) -> Result<Hint, ()> {
    tokio::select! {
        biased;
        hint = hints.next() => Ok(hint),
        () = std::future::ready(()) => Err(()),
    }
}
