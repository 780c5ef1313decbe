//! Permits. A backend without them passes each of these functions.

use std::num::NonZeroU16;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::acquire::side_by_side;
use super::holder::forced;
use super::queue::waiter::freed;
use super::support::{
    LONG, MARGIN, SHORT, busy, definite, fresh_key, grant, grant_within, inspected, only, release,
    released,
};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, ContendRequest, Contended, ForceReleased, LeaseId, Mode,
    Release, Released, Renewal, Renewed,
};

fn lease() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}

/// Returns a fresh key, or `None` if the backend has no permits.
fn key<B: Backend>(subject: &str, backend: &B) -> Option<LockKey> {
    let modes = backend.modes();
    modes.include(Mode::Permit).then(|| fresh_key(subject))
}

/// How a lease asks for a key.
#[derive(Debug, Clone, Copy)]
struct Asked(Mode, Option<NonZeroU16>);

const EXCLUSIVE: Asked = Asked(Mode::Exclusive, None);
const SHARED: Asked = Asked(Mode::Shared, None);

const fn permit(limit: u16) -> Asked {
    Asked(Mode::Permit, NonZeroU16::new(limit))
}

async fn attempt<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    Asked(mode, limit): Asked,
    ttl: Duration,
) -> Acquired {
    let request = AcquireRequest::new(key.clone(), lease, ttl).with_mode(mode);
    let answer = backend.try_acquire(&request.with_limit(limit)).await;
    definite(answer, "try_acquire")
}

/// Acquires a lease and returns its counter.
async fn hold<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    asked: Asked,
    ttl: Duration,
) -> u64 {
    match attempt(backend, key, lease, asked, ttl).await {
        Acquired::Granted { counter } => counter,
        Acquired::Busy { ttl } => panic!("{key:?} has room for {asked:?} and is busy for {ttl:?}"),
    }
}

/// Checks that an attempt of a fresh lease is rejected. Returns the remaining time.
async fn refuses<B: Backend>(backend: &B, key: &LockKey, asked: Asked) -> Duration {
    match attempt(backend, key, lease(), asked, LONG).await {
        Acquired::Busy { ttl } => ttl,
        Acquired::Granted { .. } => panic!("{key:?} has no room and was granted to {asked:?}"),
    }
}

async fn contend<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    Asked(mode, limit): Asked,
) -> Contended {
    let request = ContendRequest::new(key.clone(), lease, LONG, false).with_mode(mode);
    let answer = backend.contend(&request.with_limit(limit)).await;
    definite(answer, "contend")
}

async fn is_granted<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, asked: Asked) -> bool {
    let contended = contend(backend, key, lease, asked).await;
    matches!(contended, Contended::Granted { .. })
}

/// Enters the queue. Returns `false` if the store has none.
async fn waits<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, asked: Asked) -> bool {
    match contend(backend, key, lease, asked).await {
        Contended::Waiting { queued, .. } => queued.is_some(),
        Contended::Granted { .. } => panic!("{key:?} has no room and was granted to {asked:?}"),
    }
}

/// Contends until the key is granted, because clients outside the queue may have a turn first.
async fn gets<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, asked: Asked) {
    let deadline = Instant::now() + MARGIN;
    while !is_granted(backend, key, lease, asked).await {
        assert!(Instant::now() < deadline, "{asked:?} is next");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn renew<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, ttl: Duration) -> bool {
    let renewal = Renewal::new(key.clone(), lease, ttl).with_mode(Mode::Permit);
    only(backend.renew(&[renewal]).await, "renew") != Renewed::NotHeld
}

async fn ends<B: Backend>(backend: &B, key: &LockKey, leases: &[LeaseId]) {
    for lease in leases {
        freed(released(backend, key, *lease).await);
    }
}

/// Checks that permits hold a key together up to their limit, that a repeat is counted once, and that each release
/// admits one more.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn permits_up_to_limit_hold_key_together<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits", one) else {
        return;
    };
    let [first, second, third] = [(); 3].map(|()| lease());
    hold(one, &key, first, permit(2), LONG).await;
    hold(one, &key, first, permit(2), LONG).await;
    hold(other, &key, second, permit(2), LONG).await;
    for backend in [one, other] {
        refuses(backend, &key, permit(2)).await;
    }
    // A repeat is granted while the key is full.
    hold(one, &key, second, permit(2), LONG).await;
    release(other, &key, first).await;
    assert_eq!(released(one, &key, first).await, Released::NotHeld);
    hold(one, &key, third, permit(2), LONG).await;
    refuses(other, &key, permit(2)).await;
    release(one, &key, second).await;
    release(other, &key, third).await;
}

/// Checks that each acquire obeys its own limit, whatever those of the permits that hold the key are.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn each_permit_obeys_its_own_limit<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-limits", one) else {
        return;
    };
    let leases = [(); 4].map(|()| lease());
    for (lease, limit) in leases.into_iter().zip([1, 2, 9, 4]) {
        hold(one, &key, lease, permit(limit), LONG).await;
    }
    // The number of permits decreases from 4.
    for (at, leaver) in leases.into_iter().enumerate() {
        let held = u16::try_from(4 - at).expect("at most 4");
        for limit in 1..=held {
            refuses(other, &key, permit(limit)).await;
        }
        let next = lease();
        hold(other, &key, next, permit(held + 1), LONG).await;
        release(other, &key, next).await;
        release(one, &key, leaver).await;
    }
}

/// Checks that concurrent acquires receive as many permits as their limit.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn concurrent_permits_stay_within_limit<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-race", one) else {
        return;
    };
    let leases = [(); 16].map(|()| lease());
    let attempts = leases.iter().enumerate().map(|(at, lease)| {
        let backend = if at % 2 == 0 { one } else { other };
        Box::pin(attempt(backend, &key, *lease, permit(3), LONG))
    });
    let outcomes = side_by_side(attempts.collect()).await;
    let holders = leases.into_iter().zip(outcomes);
    let holders = holders.filter(|(_, outcome)| matches!(outcome, Acquired::Granted { .. }));
    let holders: Vec<LeaseId> = holders.map(|(lease, _)| lease).collect();
    assert_eq!(holders.len(), 3, "the limit is 3");
    ends(other, &key, &holders).await;
}

/// Checks that an exclusive or shared lease waits for all permits, and that permits wait for it.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn permits_exclude_leases_of_other_modes<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-modes", one) else {
        return;
    };
    let modes = one.modes();
    for asked in [EXCLUSIVE, SHARED] {
        if !modes.include(asked.0) {
            continue;
        }
        let [first, second, holder] = [(); 3].map(|()| lease());
        hold(one, &key, first, permit(9), LONG).await;
        hold(other, &key, second, permit(9), LONG).await;
        refuses(one, &key, asked).await;
        release(one, &key, first).await;
        refuses(other, &key, asked).await;
        release(other, &key, second).await;
        hold(one, &key, holder, asked, LONG).await;
        refuses(other, &key, permit(9)).await;
        release(one, &key, holder).await;
        hold(other, &key, first, permit(9), LONG).await;
        release(other, &key, first).await;
    }
}

/// Checks that a permit that expires frees only its own place, and that no renewal extends another permit.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn expired_permit_frees_only_its_place<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-expiry", one) else {
        return;
    };
    let [brief, long, next] = [(); 3].map(|()| lease());
    hold(one, &key, long, permit(2), LONG).await;
    hold(other, &key, brief, permit(2), SHORT).await;
    let began = Instant::now();
    assert!(renew(one, &key, long, LONG).await, "{long} holds {key:?}");
    let left = refuses(one, &key, permit(2)).await;
    assert!(left <= SHORT, "{brief} has {left:?} of {SHORT:?}");
    let deadline = began + SHORT + MARGIN;
    loop {
        match attempt(other, &key, next, permit(2), LONG).await {
            Acquired::Granted { .. } => break,
            Acquired::Busy { ttl } => assert!(Instant::now() < deadline, "busy for {ttl:?}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
    assert!(!renew(one, &key, brief, LONG).await, "{brief} has expired");
    assert_eq!(released(one, &key, brief).await, Released::NotHeld);
    refuses(one, &key, permit(2)).await;
    for lease in [long, next] {
        assert!(renew(one, &key, lease, LONG).await, "{lease} holds {key:?}");
        release(other, &key, lease).await;
    }
}

/// Checks that the remaining TTL for an exclusive lease is that of the permit with the latest end, also after releases.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn remaining_ttl_is_that_of_latest_permit<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-ttl", one) else {
        return;
    };
    let [brief, long, writer] = [(); 3].map(|()| lease());
    hold(one, &key, long, permit(2), LONG).await;
    hold(other, &key, brief, permit(2), SHORT).await;
    let left = busy(other, &key, writer).await;
    assert!(left <= LONG && left > LONG / 2, "{left:?} of {LONG:?}");
    release(one, &key, long).await;
    // The other permit may have expired before.
    if let Acquired::Busy { ttl } = attempt(other, &key, writer, EXCLUSIVE, LONG).await {
        assert!(ttl <= SHORT, "{brief} has {ttl:?} of {SHORT:?}");
        grant_within(other, &key, writer, LONG, SHORT + MARGIN).await;
    }
    release(other, &key, writer).await;
}

/// Checks that a forced release of one holder ends one permit, that a forced release of the key ends all, and that no
/// renewal revives them.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn forced_release_ends_one_permit_or_all<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-force", one) else {
        return;
    };
    let [first, second, third] = [(); 3].map(|()| lease());
    for lease in [first, second] {
        hold(one, &key, lease, permit(2), LONG).await;
    }
    let holder = inspected(other, &key).await;
    // The permissions of this client may not disclose it.
    if !holder.id.is_empty() {
        assert_eq!((holder.mode, holder.leases), (Mode::Permit, 2));
        let outcome = forced(other, &key, &holder.id).await;
        assert_eq!(outcome, ForceReleased::Released);
        let outcome = forced(other, &key, &holder.id).await;
        assert_eq!(outcome, ForceReleased::NotHeld, "it was released");
        let kept = [
            renew(one, &key, first, LONG).await,
            renew(one, &key, second, LONG).await,
        ];
        assert!(kept[0] != kept[1], "one of {kept:?} is held");
        hold(other, &key, third, permit(2), LONG).await;
        refuses(one, &key, permit(2)).await;
    }
    let outcome = definite(other.force_release(&key).await, "force_release");
    assert_eq!(outcome, ForceReleased::Released);
    let writer = lease();
    for lease in [first, second, third] {
        assert!(!renew(one, &key, lease, LONG).await, "{lease} has ended");
    }
    grant(one, &key, writer, LONG).await;
    release(one, &key, writer).await;
    // Permits from before the force do not count.
    hold(one, &key, first, permit(1), LONG).await;
    assert!(!renew(one, &key, second, LONG).await, "{second} has ended");
    release(one, &key, first).await;
}

/// Checks that the counters of permits and of exclusive leases exceed those of the other kind before them.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn counters_of_permits_increase<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-counter", one) else {
        return;
    };
    let mut last = 0;
    for _ in 0..3 {
        let [writer, first, second] = [(); 3].map(|()| lease());
        let counter = grant(one, &key, writer, LONG).await;
        assert!(counter > last, "{counter} follows {last}");
        release(one, &key, writer).await;
        let one_of_two = hold(other, &key, first, permit(2), LONG).await;
        assert!(one_of_two > counter, "{one_of_two} follows {counter}");
        last = one_of_two.max(hold(one, &key, second, permit(2), LONG).await);
        ends(one, &key, &[first, second]).await;
    }
}

/// Checks that permits that wait are served in the order of the queue, one for each release, and that a smaller limit
/// makes those behind it wait as well.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn waiting_permits_are_served_in_order<B: Backend>(one: &B, other: &B) {
    let Some(key) = key("permits-queue", one) else {
        return;
    };
    let [a, b, first, small, last] = [(); 5].map(|()| lease());
    hold(one, &key, a, permit(2), LONG).await;
    hold(other, &key, b, permit(2), LONG).await;
    if !waits(other, &key, first, permit(2)).await {
        ends(one, &key, &[a, b]).await;
        return;
    }
    waits(one, &key, small, permit(1)).await;
    waits(other, &key, last, permit(3)).await;
    // The third limit has room, but not before those that wait.
    refuses(one, &key, permit(3)).await;
    freed(released(one, &key, a).await);
    // The second place is that of the first waiter, which has a short time to ask for it.
    refuses(one, &key, permit(2)).await;
    gets(other, &key, first, permit(2)).await;
    waits(one, &key, small, permit(1)).await;
    waits(other, &key, last, permit(3)).await;
    freed(released(one, &key, b).await);
    waits(one, &key, small, permit(1)).await;
    waits(other, &key, last, permit(3)).await;
    let outcome = released(other, &key, first).await;
    assert_ne!(outcome, Released::NotHeld, "{first} held {key:?}");
    gets(one, &key, small, permit(1)).await;
    gets(other, &key, last, permit(3)).await;
    ends(one, &key, &[small, last]).await;
}

/// Checks that no permit passes a lease of another mode that waits in the queue, that this lease waits for all permits,
/// and that its departure admits the permits behind it.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn waiting_lease_of_other_mode_stops_permits<B: Backend>(one: &B, other: &B) {
    let modes = one.modes();
    for asked in [EXCLUSIVE, SHARED] {
        let Some(key) = key("permits-wanted", one) else {
            return;
        };
        if !modes.include(asked.0) {
            continue;
        }
        let [first, second, waiter, later] = [(); 4].map(|()| lease());
        hold(one, &key, first, permit(9), LONG).await;
        hold(one, &key, second, permit(9), LONG).await;
        if !waits(other, &key, waiter, asked).await {
            ends(one, &key, &[first, second]).await;
            return;
        }
        refuses(one, &key, permit(9)).await;
        waits(one, &key, later, permit(9)).await;
        // A repeat is granted nevertheless.
        hold(one, &key, second, permit(9), LONG).await;
        freed(released(one, &key, first).await);
        waits(other, &key, waiter, asked).await;
        let leaver = [Release::new(key.clone(), waiter)];
        assert_eq!(only(other.leave(&leaver).await, "leave"), Released::NotHeld);
        gets(one, &key, later, permit(9)).await;
        // It waits again, now for both of them.
        let waiter = lease();
        waits(other, &key, waiter, asked).await;
        freed(released(one, &key, second).await);
        waits(other, &key, waiter, asked).await;
        let outcome = released(one, &key, later).await;
        assert_ne!(outcome, Released::NotHeld, "{later} held {key:?}");
        gets(other, &key, waiter, asked).await;
        refuses(one, &key, permit(9)).await;
        ends(other, &key, &[waiter]).await;
    }
}
