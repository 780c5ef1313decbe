//! The contract of [`Node`] in code: what a store owes to be one of several, besides that of
//! [`Backend`](crate::Backend).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use tower_lock::backend::{Memory, conformance};
//!
//! let memory = Memory::new();
//! conformance::node::all(&memory, &memory.clone()).await;
//! # }
//! ```

use std::time::Duration;

use uuid::Uuid;

use super::support::{
    LONG, MARGIN, SHORT, busy, definite, fixture, fresh_key, grant_within, release, released,
    renewed,
};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, BackendError, Fence, LeaseId, Node, Released, Renewed,
};

/// Runs every function of this module, one after the other.
///
/// `one` and `other` are two handles on one store.
///
/// # Panics
///
/// If the store breaks a promise; the message says which.
pub async fn all<N: Node>(one: &N, other: &N) {
    a_vote_holds_the_key_as_an_acquire_does(one, other).await;
    a_vote_may_be_cast_again_under_one_lease(one).await;
    a_vote_lasts_as_long_as_it_was_asked_for(one).await;
    a_confirmed_counter_is_remembered(one, other).await;
    a_proposal_is_taken_up_where_a_counter_is_known(one, other).await;
    a_vote_that_is_refused_moves_no_counter(one, other).await;
}

/// Votes and acquires exclude each other, and the lease of a vote is renewed and released like any.
///
/// # Panics
///
/// If it is not so.
pub async fn a_vote_holds_the_key_as_an_acquire_does<N: Node>(one: &N, other: &N) {
    let (key, holder, stranger) = fixture("vote");
    granted(one, &key, holder, Fence::Propose(1)).await;
    let left = busy(other, &key, stranger).await;
    assert!(left <= LONG && left > LONG / 2, "{left:?} of {LONG:?}");
    refused(other, &key, stranger, Fence::Propose(1)).await;
    assert_eq!(renewed(one, &key, holder, LONG).await, Renewed::Renewed);
    release(one, &key, holder).await;
    grant_within(other, &key, stranger, LONG, SHORT).await;
    refused(one, &key, holder, Fence::Confirm(1)).await;
    release(other, &key, stranger).await;
}

/// A second vote under one lease is granted under a larger counter, once one is known, and freed by
/// one release.
///
/// # Panics
///
/// If it is not so.
pub async fn a_vote_may_be_cast_again_under_one_lease<N: Node>(node: &N) {
    let (key, holder, stranger) = fixture("vote-again");
    let first = granted(node, &key, holder, Fence::Confirm(1)).await;
    let second = granted(node, &key, holder, Fence::Confirm(1)).await;
    assert!(second > first, "the counter went from {first} to {second}");
    release(node, &key, holder).await;
    assert_eq!(released(node, &key, holder).await, Released::NotHeld);
    granted(node, &key, stranger, Fence::Propose(1)).await;
    release(node, &key, stranger).await;
}

/// The lease of a vote ends when its time has passed.
///
/// # Panics
///
/// If it is not so.
pub async fn a_vote_lasts_as_long_as_it_was_asked_for<N: Node>(node: &N) {
    let (key, holder, next) = fixture("vote-expiry");
    let vote = cast(node, &key, holder, SHORT, Fence::Propose(1)).await;
    assert!(matches!(definite(vote, "vote"), Acquired::Granted { .. }));
    refused(node, &key, next, Fence::Propose(1)).await;
    grant_within(node, &key, next, LONG, MARGIN).await;
    release(node, &key, next).await;
}

/// What was confirmed is what the next vote goes beyond, whichever handle it comes from.
///
/// # Panics
///
/// If it is not so.
pub async fn a_confirmed_counter_is_remembered<N: Node>(one: &N, other: &N) {
    let key = fresh_key("vote-confirm");
    let mut last = 0;
    for number in 0..20 {
        let lease = LeaseId::new(Uuid::new_v4(), number);
        let (here, there) = if number % 2 == 0 {
            (one, other)
        } else {
            (other, one)
        };
        let voted = granted(here, &key, lease, Fence::Propose(1)).await;
        assert!(
            voted > last || voted == 0 && last == 0,
            "{voted} after {last}"
        );
        let confirmed = granted(there, &key, lease, Fence::Confirm(voted + 10)).await;
        assert!(confirmed >= voted + 10, "{confirmed} is not {voted} + 10");
        last = confirmed;
        release(here, &key, lease).await;
    }
}

/// A node that knows a counter moves it to what is proposed, or beyond.
///
/// # Panics
///
/// If it is not so.
pub async fn a_proposal_is_taken_up_where_a_counter_is_known<N: Node>(one: &N, other: &N) {
    let (key, holder, next) = fixture("vote-propose");
    let known = granted(one, &key, holder, Fence::Confirm(1)).await;
    let proposed = known + 1_000;
    let moved = granted(other, &key, holder, Fence::Propose(proposed)).await;
    assert!(moved >= proposed, "{moved} is less than {proposed}");
    release(one, &key, holder).await;
    let after = granted(one, &key, next, Fence::Propose(1)).await;
    assert!(after > moved, "{after} after {moved}");
    release(one, &key, next).await;
}

/// A vote for a key that another lease holds leaves the counter where it is, or a contender could
/// drive it up.
///
/// # Panics
///
/// If it is not so.
pub async fn a_vote_that_is_refused_moves_no_counter<N: Node>(one: &N, other: &N) {
    const FAR: u64 = 1 << 52;
    let (key, holder, stranger) = fixture("vote-refused");
    let known = granted(one, &key, holder, Fence::Confirm(1)).await;
    for fence in [Fence::Propose(FAR), Fence::Confirm(FAR)] {
        refused(other, &key, stranger, fence).await;
    }
    let next = granted(one, &key, holder, Fence::Propose(1)).await;
    assert!(next > known && next < FAR, "{next} after {known}");
    release(one, &key, holder).await;
}

async fn cast<N: Node>(
    node: &N,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
    fence: Fence,
) -> Result<Acquired, BackendError> {
    let request = AcquireRequest::new(key.clone(), lease, ttl);
    node.vote(&request, fence).await
}

async fn granted<N: Node>(node: &N, key: &LockKey, lease: LeaseId, fence: Fence) -> u64 {
    match definite(cast(node, key, lease, LONG, fence).await, "vote") {
        Acquired::Granted { counter } => counter,
        Acquired::Busy { ttl } => panic!("{key:?} should be free and is busy for {ttl:?}"),
    }
}

async fn refused<N: Node>(node: &N, key: &LockKey, lease: LeaseId, fence: Fence) {
    let answer = definite(cast(node, key, lease, LONG, fence).await, "vote");
    assert!(
        matches!(answer, Acquired::Busy { .. }),
        "{key:?} is held and was granted to {lease}"
    );
}
