//! What an operator sees and does: the holder of a key, and the forced release.

use tokio::time::Instant;

use super::support::{LONG, MARGIN, definite, fixture, grant, release, released, renewed};
use crate::backend::{Backend, ForceReleased, Released, Renewed};

/// `inspect` tells nothing of a free key; of a held one the time left, and the holder.
///
/// A store that keeps the holder's name from this client (by its permissions) leaves it empty.
///
/// # Panics
///
/// If it is not so.
pub async fn inspect_tells_holder_and_time_left<B: Backend>(backend: &B) {
    let (key, holder, _) = fixture("inspect");
    assert_eq!(definite(backend.inspect(&key).await, "inspect"), None);
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
    assert_eq!(definite(backend.inspect(&key).await, "inspect"), None);
}

/// `force_release` frees a key held under any lease, says so, and leaves a free key alone.
///
/// # Panics
///
/// If it is not so.
pub async fn a_forced_release_frees_whoever_holds<B: Backend>(one: &B, other: &B) {
    let (key, holder, next) = fixture("force");
    let force = || other.force_release(&key);
    assert_eq!(definite(force().await, "force"), ForceReleased::NotHeld);
    grant(one, &key, holder, LONG).await;
    assert_eq!(definite(force().await, "force"), ForceReleased::Released);
    assert_eq!(renewed(one, &key, holder, LONG).await, Renewed::NotHeld);
    grant(one, &key, next, LONG).await;
    assert_eq!(released(one, &key, holder).await, Released::NotHeld);
    release(one, &key, next).await;
    // A slow node of a quorum may still hold an earlier lease.
    let deadline = Instant::now() + MARGIN;
    while definite(force().await, "force") == ForceReleased::Released {
        assert!(Instant::now() < deadline, "{key:?} is held by nobody");
    }
}
