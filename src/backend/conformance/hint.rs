//! Hints to subscribers.

use uuid::Uuid;

use super::support::{LONG, definite, fixture, fresh_key, grant, hinted, release};
use crate::backend::Backend;

/// Checks that each subscriber receives a hint when its subscription takes effect.
pub(super) async fn watch_in_effect_sends_hint<B: Backend>(backend: &B) {
    let key = fresh_key("watch");
    let mut first = backend.watch(&key, Uuid::new_v4());
    hinted(&mut first, "the first subscription takes effect").await;
    let mut second = backend.watch(&key, Uuid::new_v4());
    hinted(&mut second, "the second subscription takes effect").await;
}

/// Checks that a subscriber receives a hint at each release.
pub(super) async fn release_sends_hint_to_other_handle<B: Backend>(one: &B, other: &B) {
    let (key, holder, _) = fixture("hint");
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the subscription takes effect").await;
    for round in 0..3 {
        grant(one, &key, holder, LONG).await;
        release(one, &key, holder).await;
        hinted(&mut hints, &format!("release {round}")).await;
    }
}

/// Checks that a subscriber receives a hint at a forced release.
pub(super) async fn forced_release_sends_hint_to_other_handle<B: Backend>(one: &B, other: &B) {
    let (key, holder, _) = fixture("hint-force");
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the subscription takes effect").await;
    grant(one, &key, holder, LONG).await;
    definite(one.force_release(&key, None).await, "force_release");
    hinted(&mut hints, "the forced release").await;
}

/// Checks that all subscribers of a key receive a hint at a release, after another one unsubscribed.
pub(super) async fn release_sends_hint_to_every_subscriber<B: Backend>(backend: &B) {
    let (key, holder, _) = fixture("hint-all");
    let mut watchers = [
        backend.watch(&key, Uuid::new_v4()),
        backend.watch(&key, Uuid::new_v4()),
    ];
    drop(backend.watch(&key, Uuid::new_v4()));
    for hints in &mut watchers {
        hinted(hints, "the subscription takes effect").await;
    }
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    for hints in &mut watchers {
        hinted(hints, "the release").await;
    }
}
