//! The contract of [`Node`] in code, in addition to the contract of [`Backend`](crate::backend::Backend).

use tokio::time::sleep;
use uuid::Uuid;

use super::permits::requests::ends;
use super::shared::renew_shared;
use super::support::{
    EXCLUSIVE, LONG, MARGIN, SHORT, busy, definite, fixture, fresh_key, grant_within, lease,
    release, released, renewed,
};
use crate::LockKey;
use crate::backend::{AcquireRequest, Acquired, Fence, LeaseId, Mode, Node, Released, Renewed};

/// Runs each function for a [`Node`] in sequence. Run [`all`](super::all) as well.
///
/// `one` and `other` are two handles on one store.
///
/// # Panics
///
/// Panics if the node breaks a promise. The message names it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use tower_lock::Memory;
/// use tower_lock::backend::conformance;
///
/// let memory = Memory::new();
/// conformance::all_of_node(&memory, &memory.clone()).await;
/// # }
/// ```
pub async fn all_of_node<N: Node>(one: &N, other: &N) {
    vote_excludes_acquire_of_other_lease(one, other).await;
    repeated_vote_under_one_lease_is_granted(one).await;
    vote_expires_after_requested_ttl(one).await;
    confirmed_counter_bounds_next_vote(one, other).await;
    proposal_over_known_counter_is_adopted(one, other).await;
    rejected_vote_leaves_counter_unchanged(one, other).await;
    if one.capabilities().shared {
        shared_votes_hold_key_together(one, other).await;
        intent_keeps_shared_votes_out(one, other).await;
    }
}

/// Checks that votes and acquires exclude each other, and that the lease of a vote can be renewed and
/// released.
async fn vote_excludes_acquire_of_other_lease<N: Node>(one: &N, other: &N) {
    let (key, holder, another) = fixture("vote");
    expect_granted(one, &key, holder, Fence::Propose(1)).await;
    let left = busy(other, &key, another).await;
    assert!(left <= LONG && left > LONG / 2, "{left:?} of {LONG:?}");
    rejected(other, &key, another, Fence::Propose(1)).await;
    assert_eq!(renewed(one, &key, holder, LONG).await, Renewed::Renewed);
    release(one, &key, holder).await;
    grant_within(other, &key, another, EXCLUSIVE, SHORT).await;
    rejected(one, &key, holder, Fence::Confirm(1)).await;
    release(other, &key, another).await;
}

/// Checks that a second vote under one lease is granted under a larger counter if the node has a counter,
/// and that one release frees the key.
async fn repeated_vote_under_one_lease_is_granted<N: Node>(node: &N) {
    let (key, holder, another) = fixture("vote-again");
    let first = expect_granted(node, &key, holder, Fence::Confirm(1)).await;
    let second = expect_granted(node, &key, holder, Fence::Confirm(1)).await;
    assert!(second > first, "the counter went from {first} to {second}");
    release(node, &key, holder).await;
    assert_eq!(released(node, &key, holder).await, Released::NotHeld);
    expect_granted(node, &key, another, Fence::Propose(1)).await;
    release(node, &key, another).await;
}

/// Checks that the lease of a vote expires after its TTL.
async fn vote_expires_after_requested_ttl<N: Node>(node: &N) {
    let (key, holder, next) = fixture("vote-expiry");
    let request = AcquireRequest::new(key.clone(), holder, SHORT);
    let vote = cast(node, &request, Fence::Propose(1)).await;
    assert!(matches!(vote, Acquired::Granted { .. }));
    rejected(node, &key, next, Fence::Propose(1)).await;
    grant_within(node, &key, next, EXCLUSIVE, MARGIN).await;
    release(node, &key, next).await;
}

/// Checks that the counter of the next vote, on any handle, exceeds the confirmed counter.
async fn confirmed_counter_bounds_next_vote<N: Node>(one: &N, other: &N) {
    let key = fresh_key("vote-confirm");
    let mut last = 0;
    for number in 0..20 {
        let lease = LeaseId::new(Uuid::new_v4(), number);
        let (here, there) = if number % 2 == 0 {
            (one, other)
        } else {
            (other, one)
        };
        let voted = expect_granted(here, &key, lease, Fence::Propose(1)).await;
        assert!(
            voted > last || voted == 0 && last == 0,
            "{voted} after {last}"
        );
        let confirmed = expect_granted(there, &key, lease, Fence::Confirm(voted + 10)).await;
        assert!(confirmed >= voted + 10, "{confirmed} is not {voted} + 10");
        last = confirmed;
        release(here, &key, lease).await;
    }
}

/// Checks that a node that has a counter raises it at least to the proposed counter.
async fn proposal_over_known_counter_is_adopted<N: Node>(one: &N, other: &N) {
    let (key, holder, next) = fixture("vote-propose");
    let known = expect_granted(one, &key, holder, Fence::Confirm(1)).await;
    let proposed = known + 1_000;
    let moved = expect_granted(other, &key, holder, Fence::Propose(proposed)).await;
    assert!(moved >= proposed, "{moved} is less than {proposed}");
    release(one, &key, holder).await;
    let after = expect_granted(one, &key, next, Fence::Propose(1)).await;
    assert!(after > moved, "{after} after {moved}");
    release(one, &key, next).await;
}

/// Checks that a vote for a key that another lease holds does not change the counter. Contenders could
/// otherwise exhaust the counter.
async fn rejected_vote_leaves_counter_unchanged<N: Node>(one: &N, other: &N) {
    const FAR: u64 = 1 << 52;
    let (key, holder, another) = fixture("vote-refused");
    let known = expect_granted(one, &key, holder, Fence::Confirm(1)).await;
    for fence in [Fence::Propose(FAR), Fence::Confirm(FAR)] {
        rejected(other, &key, another, fence).await;
    }
    let next = expect_granted(one, &key, holder, Fence::Propose(1)).await;
    assert!(next > known && next < FAR, "{next} after {known}");
    release(one, &key, holder).await;
}

/// Checks that the votes for shared leases exclude only those for an exclusive one, under counters that increase.
async fn shared_votes_hold_key_together<N: Node>(one: &N, other: &N) {
    let (key, first, second) = fixture("vote-shared");
    let writer = lease();
    let known = expect_granted(one, &key, writer, Fence::Confirm(1)).await;
    assert!(!votes(other, &key, first, Fence::Propose(1)).await);
    release(one, &key, writer).await;
    assert!(votes(one, &key, first, Fence::Propose(1)).await);
    assert!(votes(other, &key, second, Fence::Propose(known + 1_000)).await);
    rejected(one, &key, writer, Fence::Propose(1)).await;
    assert!(votes(one, &key, first, Fence::Propose(1)).await, "again");
    release(one, &key, first).await;
    assert_eq!(released(one, &key, first).await, Released::NotHeld);
    rejected(other, &key, writer, Fence::Propose(1)).await;
    release(other, &key, second).await;
    let next = expect_granted(one, &key, writer, Fence::Propose(1)).await;
    assert!(next > known + 1_000, "{next} after {known} + 1000");
    release(one, &key, writer).await;
}

/// Checks that an exclusive lease that shared ones exclude keeps further ones of other managers out, until it is granted
/// or its time is over.
async fn intent_keeps_shared_votes_out<N: Node>(one: &N, other: &N) {
    let (key, reader, later) = fixture("vote-intent");
    let writer = lease();
    let own = LeaseId::new(writer.manager(), 2);
    let intent = AcquireRequest::new(key.clone(), writer, LONG).with_intent(MARGIN);
    let renew = || renew_shared(one, &key, reader);
    let propose = Fence::Propose(1);
    assert!(votes(one, &key, reader, propose).await);
    assert_eq!(renew().await, Renewed::Renewed);
    let vote = cast(other, &intent, propose).await;
    assert!(matches!(vote, Acquired::Busy { .. }), "{vote:?}");
    assert!(!votes(one, &key, later, propose).await, "{writer} waits");
    assert!(votes(one, &key, reader, propose).await, "a repeat");
    assert!(votes(other, &key, own, propose).await, "its own process");
    ends(other, &key, &[own]).await;
    assert_eq!(renew().await, Renewed::Wanted);
    sleep(MARGIN + SHORT).await;
    assert_eq!(renew().await, Renewed::Renewed);
    assert!(votes(one, &key, later, propose).await, "the time is over");
    ends(one, &key, &[later]).await;
    cast(other, &intent, propose).await;
    ends(one, &key, &[reader]).await;
    assert!(!votes(one, &key, later, propose).await, "the key is free");
    let vote = cast(other, &intent, propose).await;
    assert!(matches!(vote, Acquired::Granted { .. }), "{vote:?}");
    ends(other, &key, &[writer]).await;
    assert!(votes(one, &key, later, propose).await, "it was granted");
    ends(one, &key, &[later]).await;
}

/// Votes for a shared lease. Returns `true` if it is granted.
async fn votes<N: Node>(node: &N, key: &LockKey, lease: LeaseId, fence: Fence) -> bool {
    let request = AcquireRequest::new(key.clone(), lease, LONG).with_mode(Mode::Shared);
    matches!(cast(node, &request, fence).await, Acquired::Granted { .. })
}

async fn cast<N: Node>(node: &N, request: &AcquireRequest, fence: Fence) -> Acquired {
    definite(node.vote(request, fence).await, "vote")
}

async fn expect_granted<N: Node>(node: &N, key: &LockKey, lease: LeaseId, fence: Fence) -> u64 {
    let request = AcquireRequest::new(key.clone(), lease, LONG);
    match cast(node, &request, fence).await {
        Acquired::Granted { counter } => counter,
        Acquired::Busy { ttl } => panic!("{key:?} should be free and is busy for {ttl:?}"),
    }
}

async fn rejected<N: Node>(node: &N, key: &LockKey, lease: LeaseId, fence: Fence) {
    let request = AcquireRequest::new(key.clone(), lease, LONG);
    let answer = cast(node, &request, fence).await;
    assert!(
        matches!(answer, Acquired::Busy { .. }),
        "{key:?} is held and was granted to {lease}"
    );
}
