//! Grants, rejections and expiry.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::support::{
    Asked, EXCLUSIVE, LONG, MARGIN, SHORT, attempt, busy, definite, fixture, grant, grant_briefly,
    grant_within, not_released, not_renewed, release,
};
use crate::backend::{Acquired, Backend, LeaseId};

/// Checks that a free key is granted, and that a held key returns its holder's remaining TTL.
pub(super) async fn free_key_is_granted_and_held_key_is_busy<B: Backend>(one: &B, other: &B) {
    let (key, holder, another) = fixture("grant");
    grant(one, &key, holder, LONG).await;
    for handle in [one, other] {
        let left = busy(handle, &key, another).await;
        assert!(
            left <= LONG && left > LONG / 2,
            "a holder of {LONG:?} has {left:?} left"
        );
    }
    release(one, &key, holder).await;
}

/// Checks that a repeated `try_acquire` under one lease is granted, and that one release frees the key.
pub(super) async fn repeated_acquire_under_one_lease_is_granted<B: Backend>(backend: &B) {
    let (key, holder, another) = fixture("idempotent");
    let first = grant(backend, &key, holder, LONG).await;
    let second = grant(backend, &key, holder, LONG).await;
    assert!(second >= first, "the counter went from {first} to {second}");
    release(backend, &key, holder).await;
    grant(backend, &key, another, LONG).await;
    release(backend, &key, another).await;
}

/// Checks that a lease expires after its TTL, at most 3 s late, and can then be neither renewed nor
/// released.
pub(super) async fn expired_lease_frees_key<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("expiry");
    // The TTL starts between the call and its return, which can be late.
    let called = Instant::now();
    grant_briefly(backend, &key, holder).await;
    grant_within(backend, &key, next, EXCLUSIVE, SHORT + MARGIN).await;
    let lasted = called.elapsed();
    assert!(lasted >= SHORT / 2, "{SHORT:?} were over after {lasted:?}");
    not_renewed(backend, &key, holder, "an expired lease was renewed").await;
    not_released(backend, &key, holder, "an expired lease was released").await;
    release(backend, &key, next).await;
}

/// Checks that a lease that has expired is not renewed, even if no other lease has acquired the key.
pub(super) async fn expired_lease_is_not_renewed<B: Backend>(backend: &B) {
    let (key, holder, _) = fixture("expired");
    grant_briefly(backend, &key, holder).await;
    let deadline = Instant::now() + SHORT + MARGIN;
    while definite(backend.inspect(&key).await, "inspect").is_some() {
        assert!(
            Instant::now() < deadline,
            "{key:?} still has a holder {MARGIN:?} after its TTL"
        );
        sleep(Duration::from_millis(5)).await;
    }
    not_renewed(backend, &key, holder, "an expired lease was renewed").await;
}

/// Checks that exactly one of many concurrent attempts is granted.
pub(super) async fn concurrent_acquires_grant_exactly_one<B: Backend>(one: &B, other: &B) {
    // A store that excludes most of them by chance is found by one of many keys.
    for _ in 0..20 {
        concurrent_grants(one, other, EXCLUSIVE, 1).await;
    }
}

/// Checks that `most` of the concurrent attempts of two managers are granted.
pub(super) async fn concurrent_grants<B: Backend>(one: &B, other: &B, asked: Asked, most: usize) {
    let (key, ours, theirs) = fixture("contended");
    let lease = |number: u64| match number % 2 {
        0 => (one, LeaseId::new(ours.manager(), number)),
        _ => (other, LeaseId::new(theirs.manager(), number)),
    };
    let tries = (0..16).map(|number| {
        let (handle, lease) = lease(number);
        Box::pin(attempt(handle, &key, lease, asked, LONG))
    });
    let answers = side_by_side(tries.collect()).await;
    let mut granted = Vec::new();
    for (answer, number) in answers.into_iter().zip(0..) {
        if let Acquired::Granted { .. } = definite(answer, "try_acquire") {
            granted.push(lease(number).1);
        }
    }
    assert_eq!(granted.len(), most, "the limit is {most}: {granted:?}");
    for lease in granted {
        release(one, &key, lease).await;
    }
}

/// Polls all futures in one task until all are complete.
pub(super) async fn side_by_side<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outcomes: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, outcome) in futures.iter_mut().zip(&mut outcomes) {
            if outcome.is_none()
                && let std::task::Poll::Ready(ready) = std::pin::Pin::new(future).poll(context)
            {
                *outcome = Some(ready);
            }
        }
        match outcomes.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}
