//! Fixtures, and commands that must have an outcome.

use std::fmt::Debug;
use std::num::NonZeroU16;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, Hint, Hints, Holder, LeaseId, Mode, Release,
    Released, Renewal, Renewed,
};

/// How a lease asks for a key: the mode, and the limit of permits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked(pub(super) Mode, pub(super) Option<NonZeroU16>);

pub(super) const EXCLUSIVE: Asked = Asked(Mode::Exclusive, None);
pub(super) const SHARED: Asked = Asked(Mode::Shared, None);

/// A TTL longer than any function takes.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// The TTL of a lease that is meant to expire.
pub(super) const SHORT: Duration = Duration::from_millis(300);
/// The longest delay of an expiry and of a hint.
pub(super) const MARGIN: Duration = Duration::from_secs(3);

pub(super) fn fresh_key(subject: &str) -> LockKey {
    LockKey::from_parts(["conformance", subject, &Uuid::new_v4().to_string()])
}

/// Returns a fresh key, and leases of two managers.
pub(super) fn fixture(subject: &str) -> (LockKey, LeaseId, LeaseId) {
    (fresh_key(subject), lease(), lease())
}

/// Returns a lease of another manager.
pub(super) fn lease() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}

#[track_caller]
pub(super) fn definite<T: Debug>(answer: Result<T, BackendError>, command: &str) -> T {
    match answer {
        Ok(outcome) => outcome,
        Err(error) => panic!("{command} has no outcome: {error:?}"),
    }
}

pub(super) async fn attempt<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    Asked(mode, limit): Asked,
    ttl: Duration,
) -> Result<Acquired, BackendError> {
    let request = AcquireRequest::new(key.clone(), lease, ttl).with_mode(mode);
    backend.try_acquire(&request.with_limit(limit)).await
}

pub(super) async fn grant<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> u64 {
    expect_granted(attempt(backend, key, lease, EXCLUSIVE, ttl).await, key)
}

/// Acquires a lease that is meant to expire.
///
/// The lease can expire before a slow store replies. The store then returns an error without an effect,
/// and the attempt is repeated.
pub(super) async fn grant_briefly<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> u64 {
    let deadline = Instant::now() + MARGIN;
    loop {
        let answer = attempt(backend, key, lease, EXCLUSIVE, SHORT).await;
        let nothing = answer.as_ref().err();
        let nothing = nothing.is_some_and(|error| !error.may_have_taken_effect());
        if !nothing || Instant::now() >= deadline {
            return expect_granted(answer, key);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[track_caller]
pub(super) fn expect_granted(answer: Result<Acquired, BackendError>, key: &LockKey) -> u64 {
    match definite(answer, "try_acquire") {
        Acquired::Granted { counter } => counter,
        Acquired::Busy { ttl } => panic!("{key:?} should be free and is busy for {ttl:?}"),
    }
}

/// Attempts to acquire the key until it is granted, for at most `patience`.
pub(super) async fn grant_within<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    asked: Asked,
    patience: Duration,
) -> u64 {
    let deadline = Instant::now() + patience;
    loop {
        let answer = attempt(backend, key, lease, asked, LONG).await;
        match definite(answer, "try_acquire") {
            Acquired::Granted { counter } => return counter,
            Acquired::Busy { ttl } => assert!(
                Instant::now() < deadline,
                "{key:?} should be free after {patience:?} and is busy for {ttl:?}"
            ),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn busy<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> Duration {
    let answer = attempt(backend, key, lease, EXCLUSIVE, LONG).await;
    match definite(answer, "try_acquire") {
        Acquired::Busy { ttl } => ttl,
        Acquired::Granted { .. } => panic!("{key:?} is held and was granted to {lease}"),
    }
}

pub(super) async fn renewed<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> Renewed {
    let renewals = [Renewal::new(key.clone(), lease, ttl)];
    only(backend.renew(&renewals).await, "renew")
}

pub(super) async fn released<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> Released {
    let releases = [Release::new(key.clone(), lease)];
    only(backend.release(&releases).await, "release")
}

pub(super) async fn not_renewed<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, why: &str) {
    // A renewal that took effect would show in the TTL.
    let outcome = renewed(backend, key, lease, LONG * 10).await;
    assert_eq!(outcome, Renewed::NotHeld, "{why}");
}

pub(super) async fn not_released<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    why: &str,
) {
    let outcome = released(backend, key, lease).await;
    assert_eq!(outcome, Released::NotHeld, "{why}");
}

pub(super) async fn release<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) {
    let outcome = released(backend, key, lease).await;
    assert_eq!(outcome, Released::Released, "{lease} held {key:?}");
}

pub(super) fn only<T: Debug>(answers: Vec<Result<T, BackendError>>, command: &str) -> T {
    let mut answers = answers.into_iter();
    match (answers.next(), answers.next()) {
        (Some(answer), None) => definite(answer, command),
        _ => panic!("{command} of one item must return one result"),
    }
}

pub(super) async fn inspected<B: Backend>(backend: &B, key: &LockKey) -> Holder {
    let holder = definite(backend.inspect(key).await, "inspect");
    holder.expect("a held key has a holder")
}

pub(super) async fn hinted(hints: &mut Hints, what: &str) -> Hint {
    match timeout(MARGIN, hints.next()).await {
        Ok(hint) => hint,
        Err(_) => panic!("no hint within {MARGIN:?}: {what}"),
    }
}
