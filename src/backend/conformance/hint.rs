//! The hints that subscribers receive.

use uuid::Uuid;

use super::support::{LONG, definite, fixture, fresh_key, grant, hinted, release};
use crate::backend::Backend;

/// The first hint says that the watch is in force, also for a second watcher.
///
/// # Panics
///
/// If it is not so.
pub async fn a_watch_is_hinted_once_it_is_in_force<B: Backend>(backend: &B) {
    let key = fresh_key("watch");
    let mut first = backend.watch(&key, Uuid::new_v4());
    hinted(&mut first, "the first watch is in force").await;
    let mut second = backend.watch(&key, Uuid::new_v4());
    hinted(&mut second, "the second watch is in force").await;
}

/// A subscriber is notified of each release.
///
/// # Panics
///
/// If it is not so.
pub async fn a_release_is_hinted_to_the_other_handle<B: Backend>(one: &B, other: &B) {
    let (key, holder, _) = fixture("hint");
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the watch is in force").await;
    for round in 0..3 {
        grant(one, &key, holder, LONG).await;
        release(one, &key, holder).await;
        hinted(&mut hints, &format!("release {round}")).await;
    }
}

/// A subscriber is notified of a forced release.
///
/// # Panics
///
/// If it is not so.
pub async fn a_forced_release_is_hinted_to_the_other_handle<B: Backend>(one: &B, other: &B) {
    let (key, holder, _) = fixture("hint-force");
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the watch is in force").await;
    grant(one, &key, holder, LONG).await;
    definite(one.force_release(&key).await, "force_release");
    hinted(&mut hints, "the forced release").await;
}

/// Two watchers of one key are both told; one that left does not keep the other from it.
///
/// # Panics
///
/// If it is not so.
pub async fn every_watcher_of_a_key_is_hinted<B: Backend>(backend: &B) {
    let (key, holder, _) = fixture("hint-all");
    let mut watchers = [
        backend.watch(&key, Uuid::new_v4()),
        backend.watch(&key, Uuid::new_v4()),
    ];
    drop(backend.watch(&key, Uuid::new_v4()));
    for hints in &mut watchers {
        hinted(hints, "the watch is in force").await;
    }
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    for hints in &mut watchers {
        hinted(hints, "the release").await;
    }
}
