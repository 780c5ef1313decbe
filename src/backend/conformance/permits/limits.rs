//! How many permits hold a key, and for how long.

use tokio::time::Instant;

use super::requests::{ends, hold, permit, refuses, renew};
use crate::backend::conformance::acquire::concurrent_grants;
use crate::backend::conformance::holder::forced;
use crate::backend::conformance::support::{
    EXCLUSIVE, LONG, MARGIN, SHARED, SHORT, attempt, busy, definite, fresh_key, grant,
    grant_within, inspected, lease, release, released,
};
use crate::backend::{Acquired, Backend, ForceReleased, Mode, Released};

/// Checks that permits hold a key together up to their limit, that a repeat is counted once, and that each release
/// admits one more.
pub(crate) async fn permits_up_to_limit_hold_key_together<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits");
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
pub(crate) async fn each_permit_obeys_its_own_limit<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits-limits");
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
pub(crate) async fn concurrent_permits_stay_within_limit<B: Backend>(one: &B, other: &B) {
    concurrent_grants(one, other, permit(3), 3).await;
}

/// Checks that an exclusive or shared lease waits for all permits, and that permits wait for it.
pub(crate) async fn permits_exclude_leases_of_other_modes<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits-modes");
    let capabilities = one.capabilities();
    for asked in [EXCLUSIVE, SHARED] {
        if !capabilities.include(asked.0) {
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
pub(crate) async fn expired_permit_frees_only_its_place<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits-expiry");
    let [brief, long, next] = [(); 3].map(|()| lease());
    hold(one, &key, long, permit(2), LONG).await;
    let called = Instant::now();
    hold(other, &key, brief, permit(2), SHORT).await;
    assert!(renew(one, &key, long, LONG).await, "{long} holds {key:?}");
    let answer = attempt(other, &key, next, permit(2), LONG).await;
    match definite(answer, "try_acquire") {
        Acquired::Busy { ttl } => {
            assert!(ttl <= SHORT, "{brief} has {ttl:?} of {SHORT:?}");
            grant_within(other, &key, next, permit(2), SHORT + MARGIN).await;
        }
        // The replies were late.
        Acquired::Granted { .. } => assert!(called.elapsed() >= SHORT, "{key:?} has no room"),
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
pub(crate) async fn remaining_ttl_is_that_of_latest_permit<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits-ttl");
    let [brief, long, writer] = [(); 3].map(|()| lease());
    hold(one, &key, long, permit(2), LONG).await;
    hold(other, &key, brief, permit(2), SHORT).await;
    let left = busy(other, &key, writer).await;
    assert!(left <= LONG && left > LONG / 2, "{left:?} of {LONG:?}");
    release(one, &key, long).await;
    // The other permit may have expired before.
    let answer = attempt(other, &key, writer, EXCLUSIVE, LONG).await;
    if let Acquired::Busy { ttl } = definite(answer, "try_acquire") {
        assert!(ttl <= SHORT, "{brief} has {ttl:?} of {SHORT:?}");
        grant_within(other, &key, writer, EXCLUSIVE, SHORT + MARGIN).await;
    }
    release(other, &key, writer).await;
}

/// Checks that a forced release of one holder ends one permit, that a forced release of the key ends all, and that no
/// renewal revives them.
pub(crate) async fn forced_release_ends_one_permit_or_all<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits-force");
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
    let outcome = definite(other.force_release(&key, None).await, "force_release");
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
pub(crate) async fn counters_of_permits_increase<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits-counter");
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
