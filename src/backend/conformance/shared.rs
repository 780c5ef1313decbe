//! Shared leases. A backend without them passes each of these functions.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::holder::forced;
use super::queue::waiter::{freed, passed_on};
use super::support::{
    LONG, MARGIN, SHORT, busy, definite, fresh_key, grant, grant_within, granted, only, release,
    released,
};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, ContendRequest, Contended, ForceReleased, LeaseId, Mode,
    Release, Released, Renewal, Renewed,
};

pub(super) fn lease() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}

/// Returns a fresh key, or `None` if the backend has no shared leases.
pub(super) fn key<B: Backend>(subject: &str, backend: &B) -> Option<LockKey> {
    let modes = backend.modes();
    modes.include(Mode::Shared).then(|| fresh_key(subject))
}

async fn try_share<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> Acquired {
    let request = AcquireRequest::new(key.clone(), lease, ttl).with_mode(Mode::Shared);
    definite(backend.try_acquire(&request).await, "try_acquire")
}

pub(super) async fn share<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> u64 {
    granted(Ok(try_share(backend, key, lease, ttl).await), key)
}

pub(super) async fn is_refused<B: Backend>(backend: &B, key: &LockKey) -> bool {
    let outcome = try_share(backend, key, lease(), LONG).await;
    matches!(outcome, Acquired::Busy { .. })
}

pub(super) async fn contend<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    mode: Mode,
) -> Contended {
    let request = ContendRequest::new(key.clone(), lease, LONG, false).with_mode(mode);
    definite(backend.contend(&request).await, "contend")
}

/// Contends until the key is granted, because clients outside the queue may have a turn first.
pub(super) async fn gets<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, mode: Mode) {
    let deadline = Instant::now() + MARGIN;
    while !contend(backend, key, lease, mode).await.is_granted() {
        assert!(Instant::now() < deadline, "{lease} is next");
        sleep(Duration::from_millis(5)).await;
    }
}

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
    let Some(key) = key("shared", one) else {
        return;
    };
    let (first, second, writer) = (lease(), lease(), lease());
    share(one, &key, first, LONG).await;
    share(other, &key, second, LONG).await;
    busy(one, &key, writer).await;
    release(one, &key, first).await;
    busy(other, &key, writer).await;
    assert_eq!(released(one, &key, first).await, Released::NotHeld);
    release(other, &key, second).await;
    grant(one, &key, writer, LONG).await;
    assert!(is_refused(other, &key).await, "{writer} holds {key:?}");
    release(one, &key, writer).await;
}

/// Checks that a repeated acquire under one shared lease is granted and counted once.
pub(super) async fn repeated_acquire_under_shared_lease_is_granted<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("shared-again", one) else {
        return;
    };
    let reader = lease();
    share(one, &key, reader, LONG).await;
    share(one, &key, reader, LONG).await;
    let joined = lease();
    let contended = contend(other, &key, joined, Mode::Shared).await;
    assert!(contended.is_granted(), "shared leases hold {key:?}");
    release(other, &key, joined).await;
    release(one, &key, reader).await;
    assert_eq!(released(one, &key, reader).await, Released::NotHeld);
}

/// Checks that each shared lease expires, whatever the others do, and that the key is free after the last one.
pub(super) async fn shared_lease_expires_by_itself<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("shared-expiry", one) else {
        return;
    };
    let (brief, long) = (lease(), lease());
    share(other, &key, brief, SHORT).await;
    let holder = definite(one.inspect(&key).await, "inspect");
    share(one, &key, long, LONG).await;
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
    share(one, &key, long, LONG).await;
    share(other, &key, brief, SHORT).await;
    release(one, &key, long).await;
    let writer = lease();
    grant_within(other, &key, writer, LONG, SHORT + MARGIN).await;
    release(other, &key, writer).await;
}

/// Checks that the counters of exclusive leases exceed those of shared ones before them, and the reverse.
pub(super) async fn counters_of_both_modes_increase<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("shared-counter", one) else {
        return;
    };
    let mut last = 0;
    for _ in 0..3 {
        let writer = lease();
        let counter = grant(one, &key, writer, LONG).await;
        assert!(counter > last, "{counter} follows {last}");
        release(one, &key, writer).await;
        let (first, second) = (lease(), lease());
        let shared = share(other, &key, first, LONG).await;
        assert!(shared > counter, "{shared} follows {counter}");
        last = shared.max(share(one, &key, second, LONG).await);
        release(other, &key, first).await;
        release(one, &key, second).await;
    }
}

/// Checks that no shared lease passes an exclusive one that waits in the queue, that renewals report it, and that its
/// departure admits the shared ones behind it.
pub(super) async fn waiting_exclusive_lease_stops_shared_ones<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("shared-wanted", one) else {
        return;
    };
    let (reader, writer, later) = (lease(), lease(), lease());
    share(one, &key, reader, LONG).await;
    let waiting = contend(other, &key, writer, Mode::Exclusive).await;
    if !waiting.is_queued() {
        release(one, &key, reader).await;
        return;
    }
    assert!(is_refused(one, &key).await, "{writer} waits");
    assert!(contend(one, &key, later, Mode::Shared).await.is_queued());
    assert_eq!(renew_shared(one, &key, reader).await, Renewed::Wanted);
    // A repeat is granted nevertheless.
    share(one, &key, reader, LONG).await;
    let leaver = [Release::new(key.clone(), writer)];
    assert_eq!(only(other.leave(&leaver).await, "leave"), Released::NotHeld);
    assert!(contend(one, &key, later, Mode::Shared).await.is_granted());
    assert_eq!(renew_shared(one, &key, reader).await, Renewed::Renewed);
    release(one, &key, reader).await;
    release(one, &key, later).await;
}

/// Checks that a key that becomes free is transferred to the shared leases at the head of the queue together, up to the
/// first exclusive one, which receives it after the last of them.
pub(super) async fn waiting_shared_leases_are_served_together<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("shared-together", one) else {
        return;
    };
    let (writer, first, second, next, last) = (lease(), lease(), lease(), lease(), lease());
    grant(one, &key, writer, LONG).await;
    for (backend, lease, mode) in [
        (other, first, Mode::Shared),
        (one, second, Mode::Shared),
        (other, next, Mode::Exclusive),
        (one, last, Mode::Shared),
    ] {
        if !contend(backend, &key, lease, mode).await.is_queued() {
            release(one, &key, writer).await;
            return;
        }
    }
    passed_on(released(one, &key, writer).await);
    gets(other, &key, first, Mode::Shared).await;
    gets(one, &key, second, Mode::Shared).await;
    let waits = async |backend, lease, mode| {
        let contended = contend(backend, &key, lease, mode).await;
        assert!(contended.is_queued(), "{lease} waits: {contended:?}");
    };
    waits(other, next, Mode::Exclusive).await;
    waits(one, last, Mode::Shared).await;
    release(other, &key, first).await;
    waits(other, next, Mode::Exclusive).await;
    passed_on(released(one, &key, second).await);
    waits(one, last, Mode::Shared).await;
    gets(other, &key, next, Mode::Exclusive).await;
    passed_on(released(other, &key, next).await);
    gets(one, &key, last, Mode::Shared).await;
    freed(released(one, &key, last).await);
}

/// Checks that a forced release ends all shared leases of a key.
pub(super) async fn forced_release_ends_shared_leases<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("shared-force", one) else {
        return;
    };
    let (first, second, writer) = (lease(), lease(), lease());
    share(one, &key, first, LONG).await;
    share(other, &key, second, LONG).await;
    let outcome = definite(other.force_release(&key).await, "force_release");
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

    pub(super) fn is_queued(self) -> bool {
        matches!(
            self,
            Self::Waiting {
                queued: Some(_),
                ..
            }
        )
    }
}
