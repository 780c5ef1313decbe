//! The counters of grants.

use uuid::Uuid;

use super::support::{
    LONG, MARGIN, SHORT, definite, fixture, fresh_key, grant, grant_briefly, grant_within, release,
};
use crate::backend::{Backend, LeaseId};

/// Each fresh grant of a key has a larger counter than the one before, whichever handle it went
/// to, and all stay below 2^53.
///
/// # Panics
///
/// If it is not so.
pub async fn counters_increase_over_grants<B: Backend>(one: &B, other: &B) {
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

/// Counters also increase where the grant before was not released, but ran out or was forced open.
///
/// # Panics
///
/// If it is not so.
pub async fn counters_increase_over_expiry_and_force<B: Backend>(one: &B, other: &B) {
    let (key, first, second) = fixture("counter-expiry");
    let expired = grant_briefly(one, &key, first).await;
    let forced = grant_within(other, &key, second, LONG, SHORT + MARGIN).await;
    assert!(forced > expired, "{forced} after {expired}, which expired");
    definite(one.force_release(&key).await, "force_release");
    let (_, third, _) = fixture("unused");
    let last = grant(one, &key, third, LONG).await;
    assert!(
        last > forced,
        "{last} after {forced}, which was forced open"
    );
    release(one, &key, third).await;
}
