//! What becomes of a lease that was handed on for long enough.

use uuid::Uuid;

use super::support::{LONG, busy, definite, fixture, grant, hinted, release};
use crate::LockKey;
use crate::backend::{Backend, Extended, KeepRequest, LeaseId, ReleasedOrKept};

/// `release_or_keep` without watchers: the lease is kept, longer and under a larger counter, or, by a backend
/// that cannot tell, released.
///
/// # Panics
///
/// If it is not so.
pub async fn a_lease_that_nobody_waits_for_may_be_kept<B: Backend>(backend: &B) {
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
        ReleasedOrKept::NotHeld => panic!("a lease that was held is said not to be"),
    }
}

/// `release_or_keep` with a watcher on the other handle releases the lease and notifies the watcher.
///
/// # Panics
///
/// If it is not so.
pub async fn a_lease_that_another_handle_watches_is_passed_on<B: Backend>(one: &B, other: &B) {
    let (key, holder, next) = fixture("pass-watched");
    grant(one, &key, holder, LONG).await;
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the watch is in force").await;
    let passed = release_or_keep(one, &key, holder).await;
    let is_released = matches!(passed, ReleasedOrKept::Released { .. });
    assert!(is_released, "somebody else was watching: {passed:?}");
    hinted(&mut hints, "the lease was passed on").await;
    grant(other, &key, next, LONG).await;
    release(other, &key, next).await;
}

/// `extend` without watchers: the lease is longer and under a larger counter, or, with a backend that
/// cannot tell, as it was.
///
/// # Panics
///
/// If it is not so.
pub async fn a_lease_that_nobody_waits_for_may_be_extended<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("extend-alone");
    let before = grant(backend, &key, holder, LONG / 2).await;
    match extend(backend, &key, holder).await {
        Extended::Kept { counter } => {
            goes_on(backend, &key, [holder, next], before, counter).await;
        }
        Extended::Wanted { .. } => {
            let left = busy(backend, &key, next).await;
            assert!(
                left <= LONG / 2,
                "it was not extended, and has {left:?} left"
            );
            release(backend, &key, holder).await;
        }
        Extended::NotHeld => panic!("a lease that was held is said not to be"),
    }
}

/// `extend` with a watcher on the other handle: the lease is as it was.
///
/// # Panics
///
/// If it is not so.
pub async fn a_lease_that_another_handle_watches_is_not_extended<B: Backend>(one: &B, other: &B) {
    let (key, holder, next) = fixture("extend-watched");
    grant(one, &key, holder, LONG / 2).await;
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the watch is in force").await;
    let extended = extend(one, &key, holder).await;
    let is_wanted = matches!(extended, Extended::Wanted { .. });
    assert!(is_wanted, "somebody else was watching: {extended:?}");
    let left = busy(other, &key, next).await;
    assert!(
        left <= LONG / 2,
        "it was not extended, and has {left:?} left"
    );
    release(one, &key, holder).await;
    hinted(&mut hints, "the lease was released").await;
}

/// `release_or_keep` and `extend` of a lease that does not hold the key change nothing.
///
/// # Panics
///
/// If it is not so.
pub async fn a_lease_that_is_not_held_can_be_neither_passed_on_nor_extended<B: Backend>(
    backend: &B,
) {
    let (key, holder, stranger) = fixture("pass-stranger");
    for held in [false, true] {
        if held {
            grant(backend, &key, holder, LONG).await;
        }
        let passed = release_or_keep(backend, &key, stranger).await;
        assert_eq!(passed, ReleasedOrKept::NotHeld);
        let extended = extend(backend, &key, stranger).await;
        let is_extended = matches!(extended, Extended::Kept { .. });
        assert!(!is_extended, "it does not hold the key: {extended:?}");
    }
    busy(backend, &key, stranger).await;
    release(backend, &key, holder).await;
}

async fn release_or_keep<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> ReleasedOrKept {
    let request = KeepRequest::new(key.clone(), lease, LONG);
    definite(backend.release_or_keep(&request).await, "release_or_keep")
}

async fn extend<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> Extended {
    let request = KeepRequest::new(key.clone(), lease, LONG);
    definite(backend.extend(&request).await, "extend")
}

/// The lease of `holder` lasts, and the counters that it was given are its own.
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
        after >= counter + u64::from(ReleasedOrKept::COUNTERS),
        "granted under {after}, among the counters from {counter} on that were given away"
    );
    release(backend, key, next).await;
}
