//! Downgrades of exclusive leases to shared ones, if the backend has them.

use std::time::Duration;

use tokio::time::sleep;

use super::permits::requests::{gets, hold, refuses, waits};
use super::queue::waiter::{freed, passed_on};
use super::shared::renew_shared;
use super::support::{
    EXCLUSIVE, LONG, SHARED, SHORT, busy, definite, fresh_key, grant, grant_briefly, lease, only,
    release, released,
};
use crate::LockKey;
use crate::backend::{
    Backend, BackendErrorKind, Downgraded, LeaseId, Release, Released, Renewal, Renewed,
};

/// Returns `None` if the backend has no downgrades.
async fn try_downgrade<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> Option<Downgraded> {
    let outcome = backend
        .downgrade(&Renewal::new(key.clone(), lease, ttl))
        .await;
    match outcome {
        Err(error) if error.kind() == BackendErrorKind::Unsupported => None,
        outcome => Some(definite(outcome, "downgrade")),
    }
}

/// Returns the counter of the shared lease, or `None` if the backend has no downgrades.
async fn downgrade<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> Option<u64> {
    match try_downgrade(backend, key, lease, LONG).await? {
        Downgraded::Shared { counter } => Some(counter),
        Downgraded::NotHeld => panic!("{lease} holds {key:?} and was not downgraded"),
    }
}

/// Checks that a downgraded lease is shared under its id: others share the key, no exclusive lease acquires it, and its
/// own release frees it.
pub(super) async fn downgraded_lease_is_shared<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("downgrade");
    let (writer, reader) = (lease(), lease());
    grant(one, &key, writer, LONG).await;
    refuses(other, &key, SHARED).await;
    if downgrade(one, &key, writer).await.is_none() {
        return release(one, &key, writer).await;
    }
    busy(other, &key, lease()).await;
    assert_eq!(renew_shared(one, &key, writer).await, Renewed::Renewed);
    let exclusive = [Renewal::new(key.clone(), lease(), LONG)];
    assert_eq!(
        only(other.renew(&exclusive).await, "renew"),
        Renewed::NotHeld
    );
    hold(other, &key, reader, SHARED, LONG).await;
    // The downgraded lease ends alone.
    release(one, &key, writer).await;
    assert_eq!(released(one, &key, writer).await, Released::NotHeld);
    busy(other, &key, lease()).await;
    release(other, &key, reader).await;
    let writer = lease();
    grant(one, &key, writer, LONG).await;
    release(one, &key, writer).await;
}

/// Checks that a downgrade serves the shared leases at the head of the queue, and no exclusive one, which then waits for
/// the last of them.
pub(super) async fn downgrade_admits_waiting_shared_leases<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("downgrade-queue");
    let (writer, first, next, last) = (lease(), lease(), lease(), lease());
    grant(one, &key, writer, LONG).await;
    for (backend, lease, mode) in [
        (other, first, SHARED),
        (other, next, EXCLUSIVE),
        (one, last, SHARED),
    ] {
        if !waits(backend, &key, lease, mode).await {
            return release(one, &key, writer).await;
        }
    }
    let leave = async |lease| {
        let leaver = [Release::new(key.clone(), lease)];
        only(one.leave(&leaver).await, "leave")
    };
    if downgrade(one, &key, writer).await.is_none() {
        for lease in [first, next, last, writer] {
            leave(lease).await;
        }
        return;
    }
    gets(other, &key, first, SHARED).await;
    assert!(waits(other, &key, next, EXCLUSIVE).await);
    assert!(waits(other, &key, last, SHARED).await);
    assert_eq!(renew_shared(one, &key, writer).await, Renewed::Wanted);
    release(one, &key, writer).await;
    assert!(waits(other, &key, next, EXCLUSIVE).await);
    passed_on(released(other, &key, first).await);
    gets(other, &key, next, EXCLUSIVE).await;
    leave(last).await;
    freed(released(other, &key, next).await);
}

/// Checks that the counter of a downgraded lease exceeds those before it, and that later ones exceed it. A repeat has
/// another counter.
pub(super) async fn counter_of_downgraded_lease_increases<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("downgrade-counter");
    let (writer, reader, next) = (lease(), lease(), lease());
    let mut last = grant(one, &key, writer, LONG).await;
    for _ in 0..2 {
        let Some(counter) = downgrade(one, &key, writer).await else {
            return release(one, &key, writer).await;
        };
        assert!(counter > last, "{counter} follows {last}");
        last = counter;
    }
    let counter = hold(other, &key, reader, SHARED, LONG).await;
    assert!(counter > last, "{counter} follows {last}");
    release(one, &key, writer).await;
    release(other, &key, reader).await;
    let later = grant(other, &key, next, LONG).await;
    assert!(later > counter, "{later} follows {counter}");
    release(other, &key, next).await;
}

/// Checks that a downgrade without the lease creates none, and that it touches no other lease.
pub(super) async fn downgrade_without_lease_changes_nothing<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("downgrade-absent");
    let (writer, absent, expired) = (lease(), lease(), lease());
    let is_absent = async |lease| {
        let outcome = try_downgrade(other, &key, lease, LONG).await;
        assert!(
            matches!(outcome, None | Some(Downgraded::NotHeld)),
            "{lease} does not hold {key:?}: {outcome:?}"
        );
    };
    is_absent(absent).await;
    grant_briefly(one, &key, expired).await;
    sleep(SHORT + SHORT / 2).await;
    is_absent(expired).await;
    grant(one, &key, writer, LONG).await;
    is_absent(absent).await;
    refuses(other, &key, SHARED).await;
    release(one, &key, writer).await;
    is_absent(writer).await;
    let next = lease();
    grant(other, &key, next, LONG).await;
    release(other, &key, next).await;
}

/// Checks that a downgrade does not shorten its lease, and that it extends a shorter one.
pub(super) async fn downgrade_extends_and_does_not_shorten_lease<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("downgrade-ttl");
    for (granted, requested) in [(LONG, SHORT), (SHORT * 5, LONG)] {
        let writer = lease();
        grant(one, &key, writer, granted).await;
        if try_downgrade(one, &key, writer, requested).await.is_none() {
            return release(one, &key, writer).await;
        }
        let left = busy(other, &key, lease()).await;
        assert!(left > LONG / 2, "{left:?} are left after {requested:?}");
        release(one, &key, writer).await;
    }
}
