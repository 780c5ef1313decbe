//! A lease that has used up its hand-off budget in one process.

use uuid::Uuid;

use super::support::{LONG, busy, definite, fixture, grant, hinted, only, release};
use crate::LockKey;
use crate::backend::{Backend, KeepRequest, LeaseId, ReleasedOrKept};

/// More counters than a lease takes at first.
const COUNTERS: u32 = 100;

/// Checks that `release_or_keep` without subscribers keeps the lease for the requested TTL under as many larger
/// counters as requested, or releases it. A backend that cannot count subscribers releases it.
pub(super) async fn release_or_keep_without_watch_keeps_or_frees<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("pass-alone");
    let before = grant(backend, &key, holder, LONG / 2).await;
    match release_or_keep(backend, &key, holder).await {
        ReleasedOrKept::Kept { counter } => {
            goes_on(backend, &key, [holder, next], before, counter).await;
        }
        ReleasedOrKept::Released { .. } => {
            grant(backend, &key, next, LONG).await;
            release(backend, &key, next).await;
        }
        ReleasedOrKept::NotHeld => panic!("a held lease was reported as not held"),
    }
}

/// Checks that `release_or_keep` releases a lease whose key another handle watches, and notifies the
/// subscriber.
pub(super) async fn release_or_keep_of_watched_key_releases<B: Backend>(one: &B, other: &B) {
    let (key, holder, next) = fixture("pass-watched");
    grant(one, &key, holder, LONG).await;
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the subscription takes effect").await;
    let passed = release_or_keep(one, &key, holder).await;
    let is_released = matches!(passed, ReleasedOrKept::Released { .. });
    assert!(is_released, "another handle watches the key: {passed:?}");
    hinted(&mut hints, "the lease was released for the subscriber").await;
    grant(other, &key, next, LONG).await;
    release(other, &key, next).await;
}

/// Checks that `release_or_keep` does not shorten a lease that it keeps.
pub(super) async fn kept_lease_is_not_shortened<B: Backend>(backend: &B) {
    let (key, holder, another) = fixture("pass-longer");
    grant(backend, &key, holder, 3 * LONG).await;
    let passed = release_or_keep(backend, &key, holder).await;
    if let ReleasedOrKept::Kept { .. } = passed {
        let left = busy(backend, &key, another).await;
        assert!(left > 2 * LONG, "{passed:?} cut the lease to {left:?}");
        release(backend, &key, holder).await;
    }
}

/// Checks that `release_or_keep` changes nothing for a lease that does not hold the key.
pub(super) async fn release_or_keep_without_lease_changes_nothing<B: Backend>(backend: &B) {
    let (key, holder, another) = fixture("pass-another");
    for held in [false, true] {
        if held {
            grant(backend, &key, holder, LONG).await;
        }
        let passed = release_or_keep(backend, &key, another).await;
        assert_eq!(passed, ReleasedOrKept::NotHeld, "it does not hold the key");
    }
    busy(backend, &key, another).await;
    release(backend, &key, holder).await;
}

/// Checks that `release_or_keep` of several leases returns their outcomes in order.
pub(super) async fn release_or_keep_returns_one_result_per_lease<B: Backend>(backend: &B) {
    let (key, holder, another) = fixture("pass-two");
    grant(backend, &key, holder, LONG).await;
    let leases = [another, holder].map(|lease| KeepRequest::new(key.clone(), lease, LONG));
    let outcomes = backend.release_or_keep(&leases).await;
    let [Ok(ReleasedOrKept::NotHeld), Ok(kept)] = &outcomes[..] else {
        panic!("only the second lease holds its key: {outcomes:?}");
    };
    assert_ne!(kept, &ReleasedOrKept::NotHeld, "it holds the key");
    definite(backend.force_release(&key, None).await, "force_release");
}

async fn release_or_keep<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> ReleasedOrKept {
    let request = KeepRequest::new(key.clone(), lease, LONG).with_counters(COUNTERS);
    only(backend.release_or_keep(&[request]).await, "release_or_keep")
}

/// Asserts that the lease of `holder` continues, and that no later grant uses its counters.
async fn goes_on<B: Backend>(
    backend: &B,
    key: &LockKey,
    [holder, next]: [LeaseId; 2],
    before: u64,
    counter: Option<u64>,
) {
    let counter = counter.expect("a store with room has counters");
    assert!(counter > before, "kept under {counter} after {before}");
    let left = busy(backend, key, next).await;
    assert!(left > LONG / 2, "kept for {LONG:?}, {left:?} left");
    release(backend, key, holder).await;
    let after = grant(backend, key, next, LONG).await;
    assert!(
        after >= counter + u64::from(COUNTERS),
        "granted under {after}, which belongs to the lease kept under {counter}"
    );
    release(backend, key, next).await;
}
