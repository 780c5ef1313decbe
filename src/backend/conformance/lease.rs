//! How a lease is renewed and released.

use uuid::Uuid;

use super::support::{
    LONG, SHORT, busy, definite, fixture, fresh_key, grant, release, released, renewed,
};
use crate::backend::{Backend, LeaseId, Release, Released, Renewal, Renewed};

/// A release frees the key. A second one changes nothing, also under a new holder.
///
/// # Panics
///
/// If it is not so.
pub async fn a_release_frees_the_key_and_may_be_repeated<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("release");
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    assert_eq!(released(backend, &key, holder).await, Released::NotHeld);
    grant(backend, &key, next, LONG).await;
    assert_eq!(
        released(backend, &key, holder).await,
        Released::NotHeld,
        "a late release must not free the next holder"
    );
    busy(backend, &key, holder).await;
    release(backend, &key, next).await;
}

/// A lease that does not hold the key does not affect its holder.
///
/// # Panics
///
/// If it is not so.
pub async fn a_stranger_can_neither_release_nor_renew<B: Backend>(one: &B, other: &B) {
    let (key, holder, stranger) = fixture("stranger");
    grant(one, &key, holder, LONG).await;
    assert_eq!(released(other, &key, stranger).await, Released::NotHeld);
    assert_eq!(
        renewed(other, &key, stranger, LONG * 10).await,
        Renewed::NotHeld
    );
    let left = busy(other, &key, stranger).await;
    assert!(left <= LONG, "a stranger's renewal made it {left:?}");
    release(one, &key, holder).await;
}

/// Renewing what was never held, or was released, answers "not held" and leaves the key free.
///
/// # Panics
///
/// If it is not so.
pub async fn a_renewal_never_creates_a_lease<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("renew-free");
    assert_eq!(renewed(backend, &key, holder, LONG).await, Renewed::NotHeld);
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    assert_eq!(renewed(backend, &key, holder, LONG).await, Renewed::NotHeld);
    grant(backend, &key, next, LONG).await;
    release(backend, &key, next).await;
}

/// A renewal makes a lease last at least as long as asked, and never less than before.
///
/// # Panics
///
/// If it is not so.
pub async fn a_renewal_lengthens_and_never_shortens<B: Backend>(backend: &B) {
    let (key, holder, stranger) = fixture("renew");
    grant(backend, &key, holder, LONG).await;
    assert_eq!(
        renewed(backend, &key, holder, 3 * LONG).await,
        Renewed::Renewed
    );
    let left = busy(backend, &key, stranger).await;
    assert!(left > 2 * LONG, "renewed for {:?}, {left:?} left", 3 * LONG);
    assert_eq!(
        renewed(backend, &key, holder, SHORT).await,
        Renewed::Renewed
    );
    let left = busy(backend, &key, stranger).await;
    assert!(left > 2 * LONG, "a short renewal cut it to {left:?}");
    release(backend, &key, holder).await;
}

/// `renew` and `release` answer each item of a batch, in the order asked, also of a batch larger
/// than a backend sends at once.
///
/// # Panics
///
/// If it is not so.
pub async fn a_batch_is_answered_item_by_item<B: Backend>(one: &B, other: &B) {
    let manager = Uuid::new_v4();
    let items: Vec<_> = (0..257_u64)
        .map(|number| Release::new(fresh_key("batch"), LeaseId::new(manager, number)))
        .collect();
    // Every third is free, every third is a stranger's, and the rest are held.
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
    assert_eq!(answers.len(), items.len(), "one answer per renewal");
    for (index, answer) in answers.into_iter().enumerate() {
        let expected = match is_held(index) {
            true => Renewed::Renewed,
            false => Renewed::NotHeld,
        };
        assert_eq!(definite(answer, "renew"), expected, "renewal {index}");
    }
    let answers = one.release(&items).await;
    assert_eq!(answers.len(), items.len(), "one answer per release");
    for (index, answer) in answers.into_iter().enumerate() {
        let expected = match is_held(index) {
            true => Released::Released,
            false => Released::NotHeld,
        };
        assert_eq!(definite(answer, "release"), expected, "release {index}");
    }
    for item in &items {
        definite(one.force_release(&item.key).await, "force_release");
    }
}

/// Nothing asked, nothing answered.
///
/// # Panics
///
/// If it is not so.
pub async fn no_items_have_no_answers<B: Backend>(backend: &B) {
    assert!(backend.renew(&[]).await.is_empty(), "renewals of nothing");
    assert!(backend.release(&[]).await.is_empty(), "releases of nothing");
}
