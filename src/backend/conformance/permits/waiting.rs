//! Permits in the queue of a key.

use super::requests::{ends, gets, hold, permit, refuses, waits};
use crate::backend::conformance::queue::waiter::freed;
use crate::backend::conformance::support::{
    EXCLUSIVE, LONG, SHARED, fresh_key, lease, only, released,
};
use crate::backend::{Backend, Release, Released};

/// Checks that permits that wait are served in the order of the queue, one for each release, and that a smaller limit
/// makes those behind it wait as well.
pub(crate) async fn waiting_permits_are_served_in_order<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("permits-queue");
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
pub(crate) async fn waiting_lease_of_other_mode_stops_permits<B: Backend>(one: &B, other: &B) {
    let capabilities = one.capabilities();
    for asked in [EXCLUSIVE, SHARED] {
        let key = fresh_key("permits-wanted");
        if !capabilities.include(asked.0) {
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
