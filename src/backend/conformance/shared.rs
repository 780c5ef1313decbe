//! Shared leases, if the backend has them.

use tokio::time::sleep;

use super::holder::forced;
use super::permits::requests::{contend, gets, hold, refuses, waits};
use super::queue::waiter::{freed, passed_on};
use super::support::{
    EXCLUSIVE, LONG, MARGIN, SHARED, SHORT, busy, definite, fresh_key, grant, grant_within, lease,
    only, release, released,
};
use crate::LockKey;
use crate::backend::{
    Backend, Contended, ForceReleased, LeaseId, Mode, Release, Released, Renewal, Renewed,
};

pub(super) async fn renew_shared<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
) -> Renewed {
    let renewal = Renewal::new(key.clone(), lease, LONG).with_mode(Mode::Shared);
    only(backend.renew(&[renewal]).await, "renew")
}

/// Checks that shared leases hold a key together, and that neither they nor an exclusive one admit the other kind.
pub(super) async fn shared_and_exclusive_leases_exclude_each_other<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("shared");
    let (first, second, writer) = (lease(), lease(), lease());
    hold(one, &key, first, SHARED, LONG).await;
    hold(other, &key, second, SHARED, LONG).await;
    busy(one, &key, writer).await;
    release(one, &key, first).await;
    busy(other, &key, writer).await;
    assert_eq!(released(one, &key, first).await, Released::NotHeld);
    release(other, &key, second).await;
    grant(one, &key, writer, LONG).await;
    refuses(other, &key, SHARED).await;
    release(one, &key, writer).await;
}

/// Checks that a repeated acquire under one shared lease is granted and counted once.
pub(super) async fn repeated_acquire_under_shared_lease_is_granted<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("shared-again");
    let reader = lease();
    hold(one, &key, reader, SHARED, LONG).await;
    hold(one, &key, reader, SHARED, LONG).await;
    let joined = lease();
    let contended = contend(other, &key, joined, SHARED).await;
    assert!(contended.is_granted(), "shared leases hold {key:?}");
    release(other, &key, joined).await;
    release(one, &key, reader).await;
    assert_eq!(released(one, &key, reader).await, Released::NotHeld);
}

/// Checks that each shared lease expires, whatever the others do, and that the key is free after the last one.
pub(super) async fn shared_lease_expires_by_itself<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("shared-expiry");
    let (brief, long) = (lease(), lease());
    hold(other, &key, brief, SHARED, SHORT).await;
    let holder = definite(one.inspect(&key).await, "inspect");
    hold(one, &key, long, SHARED, LONG).await;
    assert_eq!(renew_shared(one, &key, long).await, Renewed::Renewed);
    sleep(SHORT + SHORT / 2).await;
    let outcome = renew_shared(other, &key, brief).await;
    assert_eq!(outcome, Renewed::NotHeld, "{brief} has expired");
    if let Some(holder) = holder {
        let outcome = forced(other, &key, &holder.id).await;
        assert_eq!(outcome, ForceReleased::NotHeld, "{brief} has expired");
    }
    assert_eq!(renew_shared(one, &key, long).await, Renewed::Renewed);
    release(one, &key, long).await;
    // The lease with the latest end is released first.
    let (brief, long) = (lease(), lease());
    hold(one, &key, long, SHARED, LONG).await;
    hold(other, &key, brief, SHARED, SHORT).await;
    release(one, &key, long).await;
    let writer = lease();
    grant_within(other, &key, writer, EXCLUSIVE, SHORT + MARGIN).await;
    release(other, &key, writer).await;
}

/// Checks that the counters of exclusive leases exceed those of shared ones before them, and the reverse.
pub(super) async fn counters_of_both_modes_increase<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("shared-counter");
    let mut last = 0;
    for _ in 0..3 {
        let writer = lease();
        let counter = grant(one, &key, writer, LONG).await;
        assert!(counter > last, "{counter} follows {last}");
        release(one, &key, writer).await;
        let (first, second) = (lease(), lease());
        let shared = hold(other, &key, first, SHARED, LONG).await;
        assert!(shared > counter, "{shared} follows {counter}");
        last = shared.max(hold(one, &key, second, SHARED, LONG).await);
        release(other, &key, first).await;
        release(one, &key, second).await;
    }
}

/// Checks that no shared lease passes an exclusive one that waits in the queue, that renewals report it, and that its
/// departure admits the shared ones behind it.
pub(super) async fn waiting_exclusive_lease_stops_shared_ones<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("shared-wanted");
    let (reader, writer, later) = (lease(), lease(), lease());
    hold(one, &key, reader, SHARED, LONG).await;
    if !waits(other, &key, writer, EXCLUSIVE).await {
        return release(one, &key, reader).await;
    }
    refuses(one, &key, SHARED).await;
    assert!(waits(one, &key, later, SHARED).await);
    assert_eq!(renew_shared(one, &key, reader).await, Renewed::Wanted);
    // A repeat is granted nevertheless.
    hold(one, &key, reader, SHARED, LONG).await;
    let leaver = [Release::new(key.clone(), writer)];
    assert_eq!(only(other.leave(&leaver).await, "leave"), Released::NotHeld);
    assert!(contend(one, &key, later, SHARED).await.is_granted());
    assert_eq!(renew_shared(one, &key, reader).await, Renewed::Renewed);
    release(one, &key, reader).await;
    release(one, &key, later).await;
}

/// Checks that a key that becomes free is transferred to the shared leases at the head of the queue together, up to the
/// first exclusive one, which receives it after the last of them.
pub(super) async fn waiting_shared_leases_are_served_together<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("shared-together");
    let (writer, first, second, next, last) = (lease(), lease(), lease(), lease(), lease());
    grant(one, &key, writer, LONG).await;
    for (backend, lease, mode) in [
        (other, first, SHARED),
        (one, second, SHARED),
        (other, next, EXCLUSIVE),
        (one, last, SHARED),
    ] {
        if !waits(backend, &key, lease, mode).await {
            return release(one, &key, writer).await;
        }
    }
    passed_on(released(one, &key, writer).await);
    gets(other, &key, first, SHARED).await;
    gets(one, &key, second, SHARED).await;
    assert!(waits(other, &key, next, EXCLUSIVE).await);
    assert!(waits(one, &key, last, SHARED).await);
    release(other, &key, first).await;
    assert!(waits(other, &key, next, EXCLUSIVE).await);
    passed_on(released(one, &key, second).await);
    assert!(waits(one, &key, last, SHARED).await);
    gets(other, &key, next, EXCLUSIVE).await;
    passed_on(released(other, &key, next).await);
    gets(one, &key, last, SHARED).await;
    freed(released(one, &key, last).await);
}

/// Checks that a forced release ends all shared leases of a key.
pub(super) async fn forced_release_ends_shared_leases<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("shared-force");
    let (first, second, writer) = (lease(), lease(), lease());
    hold(one, &key, first, SHARED, LONG).await;
    hold(other, &key, second, SHARED, LONG).await;
    let outcome = definite(other.force_release(&key, None).await, "force_release");
    assert_eq!(outcome, ForceReleased::Released);
    for (backend, lease) in [(one, first), (other, second)] {
        let outcome = renew_shared(backend, &key, lease).await;
        assert_eq!(outcome, Renewed::NotHeld, "{lease} has ended");
        let outcome = released(backend, &key, lease).await;
        assert_eq!(outcome, Released::NotHeld, "{lease} has ended");
    }
    grant(one, &key, writer, LONG).await;
    release(one, &key, writer).await;
}

impl Contended {
    pub(super) fn is_granted(self) -> bool {
        matches!(self, Self::Granted { .. })
    }
}
