//! The counters of grants.

use uuid::Uuid;

use super::support::{
    EXCLUSIVE, LONG, MARGIN, SHORT, definite, fixture, fresh_key, grant, grant_briefly,
    grant_within, release,
};
use crate::backend::{Backend, LeaseId};

/// Checks that each fresh grant of a key has a larger counter than the previous one, on any handle,
/// and that counters stay below 2^53.
pub(super) async fn counter_of_each_grant_increases<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("counter");
    let manager = Uuid::new_v4();
    let mut last = 0;
    for number in 0..100 {
        let handle = if number % 2 == 0 { one } else { other };
        let lease = LeaseId::new(manager, number);
        let counter = grant(handle, &key, lease, LONG).await;
        assert!(counter > last, "grant {number}: {counter} after {last}");
        assert!(counter < 1 << 53, "{counter} does not fit a double");
        last = counter;
        release(handle, &key, lease).await;
    }
}

/// Checks that counters increase after a lease that expired or was released by force.
pub(super) async fn counter_after_expiry_or_force_increases<B: Backend>(one: &B, other: &B) {
    let (key, first, second) = fixture("counter-expiry");
    let expired = grant_briefly(one, &key, first).await;
    let forced = grant_within(other, &key, second, EXCLUSIVE, SHORT + MARGIN).await;
    assert!(forced > expired, "{forced} after {expired}, which expired");
    definite(one.force_release(&key, None).await, "force_release");
    let (_, third, _) = fixture("unused");
    let last = grant(one, &key, third, LONG).await;
    assert!(
        last > forced,
        "{last} after {forced}, which was forced open"
    );
    release(one, &key, third).await;
}

/// Checks that one counter stands for 1 to 256 fencing tokens.
pub(super) fn tokens_per_counter_are_from_1_to_256<B: Backend>(backend: &B) {
    let tokens = backend.capabilities().tokens_per_counter;
    assert!((1..=256).contains(&tokens), "{tokens} tokens per counter");
}
