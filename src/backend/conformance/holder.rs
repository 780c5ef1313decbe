//! The commands of an operator: inspection and forced release.

use tokio::time::Instant;

use super::support::{
    LONG, MARGIN, definite, fixture, grant, not_released, not_renewed, release, renewed,
};
use crate::LockKey;
use crate::backend::{Backend, ForceReleased, Renewed};

/// Checks that `inspect` returns `None` for a free key, and the lease and its remaining TTL for a held
/// key.
///
/// The lease may be empty if the permissions of this client do not disclose it.
pub(super) async fn inspect_returns_holder_and_remaining_ttl<B: Backend>(backend: &B) {
    let (key, holder, _) = fixture("inspect");
    assert_eq!(
        definite(backend.inspect(&key).await, "inspect"),
        None,
        "a free key has no holder"
    );
    grant(backend, &key, holder, LONG).await;
    let found = definite(backend.inspect(&key).await, "inspect");
    let found = found.expect("a held key has a holder");
    assert!(
        found.id == holder.to_string() || found.id.is_empty(),
        "{found:?} is not {holder}"
    );
    assert!(
        found.ttl <= LONG && found.ttl > LONG / 2,
        "a holder of {LONG:?} has {:?} left",
        found.ttl
    );
    assert_eq!(found.hold_count, 1, "leases are not counted in the store");
    release(backend, &key, holder).await;
    assert_eq!(
        definite(backend.inspect(&key).await, "inspect"),
        None,
        "a free key has no holder"
    );
}

/// Checks that `force_release` of a holder releases its lease, and no later one.
pub(super) async fn forced_release_spares_other_holder<B: Backend>(one: &B, other: &B) {
    let (key, holder, next) = fixture("force-held-by");
    let (stale, present) = (holder.to_string(), next.to_string());
    let none = ForceReleased::NotHeld;
    let outcome = forced(other, &key, &stale).await;
    assert_eq!(outcome, none, "a free key has no holder to release");
    grant(one, &key, holder, LONG).await;
    let outcome = forced(other, &key, &present).await;
    assert_eq!(outcome, none, "only the holder that is named is released");
    let outcome = forced(other, &key, &stale).await;
    let released = ForceReleased::Released;
    assert_eq!(outcome, released, "the holder that is named is released");
    grant(one, &key, next, LONG).await;
    let outcome = forced(other, &key, &stale).await;
    assert_eq!(outcome, none, "the next holder is spared");
    let outcome = renewed(one, &key, next, LONG).await;
    assert_eq!(outcome, Renewed::Renewed, "the next holder keeps its lease");
    release(one, &key, next).await;
}

pub(super) async fn forced<B: Backend>(backend: &B, key: &LockKey, holder: &str) -> ForceReleased {
    let outcome = backend.force_release(key, Some(holder)).await;
    definite(outcome, "force_release of a holder")
}

/// Checks that `force_release` frees a key that any lease holds, and reports whether the key was held.
pub(super) async fn forced_release_frees_key_of_any_lease<B: Backend>(one: &B, other: &B) {
    let (key, holder, next) = fixture("force");
    let force = || other.force_release(&key, None);
    let outcome = definite(force().await, "force_release");
    assert_eq!(outcome, ForceReleased::NotHeld, "the key was free");
    grant(one, &key, holder, LONG).await;
    let outcome = definite(force().await, "force_release");
    assert_eq!(outcome, ForceReleased::Released, "the key was held");
    not_renewed(
        one,
        &key,
        holder,
        "a lease that was ended by force was renewed",
    )
    .await;
    grant(one, &key, next, LONG).await;
    not_released(
        one,
        &key,
        holder,
        "a late release must not free the next holder",
    )
    .await;
    release(one, &key, next).await;
    // A slow node of a quorum may still hold an earlier lease.
    let deadline = Instant::now() + MARGIN;
    while definite(force().await, "force") == ForceReleased::Released {
        assert!(
            Instant::now() < deadline,
            "{key:?} has no holder to release"
        );
    }
}
