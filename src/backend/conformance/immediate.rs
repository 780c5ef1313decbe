//! The commands of a store that completes them without waiting. A store without such commands passes.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::support::{
    LONG, MARGIN, SHORT, busy, definite, fixture, grant, hinted, only, release, released, renewed,
};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, ContendRequest, KeepRequest, LeaseId, Release, Released,
    Renewed,
};
use crate::task;

/// Checks that immediate commands and the others have the same effects and outcomes, and that `now` can be earlier
/// than the last command.
pub(super) async fn immediate_commands_match_others<B: Backend>(one: &B, other: &B) {
    if one.immediate().is_none() {
        return;
    }
    let (key, holder, another) = fixture("immediate");
    let early = Instant::now();
    sleep(Duration::from_millis(5)).await;
    let before = grant(other, &key, another, LONG).await;
    let rejected = acquired_now(one, &key, holder, LONG, early);
    let is_busy = matches!(rejected, Acquired::Busy { .. });
    assert!(is_busy, "{key:?} is held and was granted to {holder}");
    assert_eq!(released_now(one, &key, holder), Released::NotHeld);
    release(other, &key, another).await;
    let mut hints = other.watch(&key, another.manager());
    hinted(&mut hints, "the subscription takes effect").await;
    for round in ["first", "repeated"] {
        match acquired_now(one, &key, holder, LONG, Instant::now()) {
            Acquired::Granted { counter } => assert!(counter > before, "{counter} after {before}"),
            Acquired::Busy { ttl } => panic!("the {round} attempt is busy for {ttl:?}"),
        }
    }
    let left = busy(other, &key, another).await;
    assert!(
        left <= LONG && left > LONG / 2,
        "a holder of {LONG:?} has {left:?} left"
    );
    assert_eq!(released_now(one, &key, holder), Released::Released);
    hinted(&mut hints, "the immediate release").await;
    assert_eq!(released(other, &key, holder).await, Released::NotHeld);
    grant(other, &key, another, LONG).await;
    release(other, &key, another).await;
}

/// Checks that the lease of an immediate grant expires after its TTL, and can then not be released.
pub(super) async fn immediate_lease_expires<B: Backend>(backend: &B) {
    if backend.immediate().is_none() {
        return;
    }
    let (key, holder, next) = fixture("immediate-expiry");
    let start = Instant::now();
    acquired_now(backend, &key, holder, SHORT, start);
    while let Acquired::Busy { ttl } = acquired_now(backend, &key, next, LONG, Instant::now()) {
        let lasted = start.elapsed();
        assert!(lasted < SHORT + MARGIN, "{key:?} is busy for {ttl:?}");
        sleep(Duration::from_millis(5)).await;
    }
    let lasted = start.elapsed();
    assert!(lasted >= SHORT, "{SHORT:?} were over after {lasted:?}");
    assert_eq!(released_now(backend, &key, holder), Released::NotHeld);
    release(backend, &key, next).await;
}

/// Checks that the commands of a store with immediate ones complete outside a runtime.
pub(super) fn immediate_store_needs_no_runtime<B: Backend>(backend: &B) {
    if backend.immediate().is_none() {
        return;
    }
    let commands = async {
        let (key, holder, another) = fixture("immediate-outside");
        grant(backend, &key, holder, LONG).await;
        let request = ContendRequest::new(key.clone(), another, LONG, false);
        definite(backend.contend(&request).await, "contend");
        definite(backend.inspect(&key).await, "inspect");
        let outcome = renewed(backend, &key, holder, LONG).await;
        assert_eq!(outcome, Renewed::Renewed);
        let keep = KeepRequest::new(key.clone(), holder, LONG);
        definite(backend.release_or_keep(&keep).await, "release_or_keep");
        let leaver = [Release::new(key.clone(), another)];
        only(backend.leave(&leaver).await, "leave");
        released(backend, &key, holder).await;
        definite(backend.force_release(&key).await, "force_release");
    };
    task::run_outside(|| {
        let (start, mut commands) = (Instant::now(), pin!(commands));
        let mut context = Context::from_waker(Waker::noop());
        while commands.as_mut().poll(&mut context).is_pending() {
            let waited = start.elapsed();
            assert!(waited < MARGIN, "a command is pending for {waited:?}");
            std::hint::spin_loop();
        }
    });
}

#[track_caller]
fn acquired_now<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
    now: Instant,
) -> Acquired {
    let immediate = backend.immediate().expect("a store keeps its commands");
    let request = AcquireRequest::new(key.clone(), lease, ttl);
    definite(immediate.try_acquire(&request, now), "immediate acquire")
}

#[track_caller]
fn released_now<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> Released {
    let immediate = backend.immediate().expect("a store keeps its commands");
    let release = Release::new(key.clone(), lease);
    let outcome = immediate.release(&release, Instant::now());
    definite(outcome, "immediate release")
}
