//! Renewal and release.

use uuid::Uuid;

use super::support::{
    LONG, SHORT, busy, definite, fixture, fresh_key, grant, not_released, not_renewed, release,
    renewed,
};
use crate::backend::{Backend, LeaseId, Release, Released, Renewal, Renewed};

/// Checks that a release frees the key, and that a repeat does not free the next holder.
pub(super) async fn release_frees_key_and_repeat_changes_nothing<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("release");
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    not_released(backend, &key, holder, "the key was released before").await;
    grant(backend, &key, next, LONG).await;
    not_released(
        backend,
        &key,
        holder,
        "a late release must not free the next holder",
    )
    .await;
    busy(backend, &key, holder).await;
    release(backend, &key, next).await;
}

/// Checks that a lease that does not hold the key can neither release nor renew the holder's lease.
pub(super) async fn other_lease_cannot_release_or_renew<B: Backend>(one: &B, other: &B) {
    let (key, holder, another) = fixture("another");
    grant(one, &key, holder, LONG).await;
    not_released(other, &key, another, "another lease released the key").await;
    not_renewed(other, &key, another, "another lease renewed the key").await;
    let left = busy(other, &key, another).await;
    assert!(
        left <= LONG,
        "a renewal under another lease made it {left:?}"
    );
    release(one, &key, holder).await;
}

/// Checks that renewing a lease that was not granted or was released leaves the key free.
pub(super) async fn renewal_without_lease_creates_none<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("renew-free");
    not_renewed(backend, &key, holder, "the key was never held").await;
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    not_renewed(backend, &key, holder, "a released lease was renewed").await;
    grant(backend, &key, next, LONG).await;
    release(backend, &key, next).await;
}

/// Checks that a renewal extends a lease to the requested TTL and does not shorten it.
pub(super) async fn renewal_extends_and_does_not_shorten_lease<B: Backend>(backend: &B) {
    let (key, holder, another) = fixture("renew");
    grant(backend, &key, holder, LONG).await;
    let outcome = renewed(backend, &key, holder, 3 * LONG).await;
    assert_eq!(outcome, Renewed::Renewed, "the lease is held");
    let left = busy(backend, &key, another).await;
    assert!(left > 2 * LONG, "renewed for {:?}, {left:?} left", 3 * LONG);
    let outcome = renewed(backend, &key, holder, SHORT).await;
    assert_eq!(outcome, Renewed::Renewed, "the lease is held");
    let left = busy(backend, &key, another).await;
    assert!(left > 2 * LONG, "a short renewal cut it to {left:?}");
    release(backend, &key, holder).await;
}

/// Checks that `renew` and `release` return one result per item, in order. The batch is larger than
/// one command of a backend.
pub(super) async fn batch_returns_one_result_per_item<B: Backend>(one: &B, other: &B) {
    let manager = Uuid::new_v4();
    let items: Vec<_> = (0..257_u64)
        .map(|number| Release::new(fresh_key("batch"), LeaseId::new(manager, number)))
        .collect();
    // The keys cycle through three states: held under the lease, held under another lease, and free.
    let is_held = |index: usize| index.is_multiple_of(3);
    for (index, Release { key, lease }) in items.iter().enumerate() {
        match index % 3 {
            0 => drop(grant(one, key, *lease, LONG).await),
            1 => drop(grant(other, key, LeaseId::new(Uuid::new_v4(), 0), LONG).await),
            _ => {}
        }
    }
    let renewals: Vec<_> = items
        .iter()
        .map(|item| Renewal::new(item.key.clone(), item.lease, LONG))
        .collect();
    let answers = one.renew(&renewals).await;
    assert_eq!(answers.len(), items.len(), "one result per renewal");
    for (index, answer) in answers.into_iter().enumerate() {
        let expected = match is_held(index) {
            true => Renewed::Renewed,
            false => Renewed::NotHeld,
        };
        assert_eq!(definite(answer, "renew"), expected, "renewal {index}");
    }
    let answers = one.release(&items).await;
    assert_eq!(answers.len(), items.len(), "one result per release");
    for (index, answer) in answers.into_iter().enumerate() {
        let expected = match is_held(index) {
            true => Released::Released,
            false => Released::NotHeld,
        };
        assert_eq!(definite(answer, "release"), expected, "release {index}");
    }
    for item in &items {
        definite(one.force_release(&item.key, None).await, "force_release");
    }
}

/// Checks that an empty batch returns no results.
pub(super) async fn empty_batch_returns_no_results<B: Backend>(backend: &B) {
    assert!(backend.renew(&[]).await.is_empty(), "renewals of nothing");
    assert!(backend.release(&[]).await.is_empty(), "releases of nothing");
}
