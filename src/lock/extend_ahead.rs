//! Asks the backend, while a busy key is handed on, whether that may go on: ahead of need, so that those who
//! queue do not have to wait for the reply.
//!
//! It is asked at a hand-off. Where each holder takes longer than a budget lasts, there is none in time, and
//! the lease is released or kept as before.

use std::sync::Arc;

use super::clock::Moment;
use super::engine::Engine;
use super::lane::Replied;
use super::lease::LeaseNumber;
use crate::LockKey;
use crate::backend::{KeepRequest, Renewal};
use crate::task::RuntimeId;

/// A task of its own: the holder that releases the key does not wait for it. Dropped with its runtime, it
/// leaves the lease as an unanswered renewal does: it expires.
pub(super) async fn extend_ahead(
    engine: Arc<Engine>,
    home: RuntimeId,
    key: LockKey,
    number: LeaseNumber,
) {
    let sent_at = Moment::now();
    let ttl = engine.event(&key, |lane, _| lane.start_extension(number, sent_at));
    let Some(ttl) = ttl else { return };
    let lease = engine.lease_id(number);
    let extension = Renewal::new(key.clone(), lease, ttl);
    let backend = Arc::clone(&engine.backend);
    let outcome = backend.extend(KeepRequest::new(key, lease, ttl)).await;
    engine.event(&extension.key, |lane, effects| {
        let now = Moment::now();
        lane.extended(
            &extension,
            sent_at,
            &outcome,
            Replied { home, now },
            effects,
        );
    });
}
