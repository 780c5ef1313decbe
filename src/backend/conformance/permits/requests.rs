//! Requests in any mode.

use std::num::NonZeroU16;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::LockKey;
use crate::backend::conformance::queue::waiter::freed;
use crate::backend::conformance::support::{
    Asked, LONG, MARGIN, attempt, definite, expect_granted, lease, only, released,
};
use crate::backend::{
    AcquireRequest, Acquired, Backend, Contended, LeaseId, Mode, Renewal, Renewed,
};

pub(super) const fn permit(limit: u16) -> Asked {
    Asked(Mode::Permit, NonZeroU16::new(limit))
}

/// Acquires a lease and returns its counter.
pub(in crate::backend::conformance) async fn hold<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    asked: Asked,
    ttl: Duration,
) -> u64 {
    expect_granted(attempt(backend, key, lease, asked, ttl).await, key)
}

/// Checks that an attempt of a fresh lease is rejected. Returns the remaining time.
pub(in crate::backend::conformance) async fn refuses<B: Backend>(
    backend: &B,
    key: &LockKey,
    asked: Asked,
) -> Duration {
    let answer = attempt(backend, key, lease(), asked, LONG).await;
    match definite(answer, "try_acquire") {
        Acquired::Busy { ttl } => ttl,
        Acquired::Granted { .. } => panic!("{key:?} has no room and was granted to {asked:?}"),
    }
}

pub(in crate::backend::conformance) async fn contend<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    Asked(mode, limit): Asked,
) -> Contended {
    let request = AcquireRequest::new(key.clone(), lease, LONG).with_mode(mode);
    let answer = backend.contend(&request.with_limit(limit)).await;
    definite(answer, "contend")
}

/// Enters the queue. Returns `false` if the store has none.
pub(in crate::backend::conformance) async fn waits<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    asked: Asked,
) -> bool {
    match contend(backend, key, lease, asked).await {
        Contended::Waiting { queued, .. } => queued.is_some(),
        Contended::Granted { .. } => panic!("{key:?} has no room and was granted to {asked:?}"),
    }
}

/// Contends until the key is granted, because clients outside the queue may have a turn first.
pub(in crate::backend::conformance) async fn gets<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    asked: Asked,
) {
    let deadline = Instant::now() + MARGIN;
    while !contend(backend, key, lease, asked).await.is_granted() {
        assert!(Instant::now() < deadline, "{asked:?} is next");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn renew<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> bool {
    let renewal = Renewal::new(key.clone(), lease, ttl).with_mode(Mode::Permit);
    only(backend.renew(&[renewal]).await, "renew") != Renewed::NotHeld
}

/// Releases leases. The key may be left to clients outside the queue.
pub(in crate::backend::conformance) async fn ends<B: Backend>(
    backend: &B,
    key: &LockKey,
    leases: &[LeaseId],
) {
    for lease in leases {
        freed(released(backend, key, *lease).await);
    }
}
