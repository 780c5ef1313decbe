//! The extension of a busy key's lease before its hand-off budget ends, so that waiters do not wait for
//! the reply.
//!
//! Each extension is sent at a hand-off. If every holder takes longer than a budget lasts, none is sent
//! in time, and the lease is released or kept at the end of the budget.

use std::sync::Arc;

use super::clock::Moment;
use super::engine::Engine;
use super::lane::Replied;
use super::lease::LeaseNumber;
use crate::LockKey;
use crate::backend::{KeepRequest, Renewal};
use crate::task::RuntimeId;

/// Sends one extension and applies the reply.
///
/// Runs as a separate task, so the releasing holder does not wait. If dropped with its runtime, the
/// lease expires as after a renewal without a reply.
pub(super) async fn extend_ahead(
    engine: Arc<Engine>,
    home: RuntimeId,
    key: LockKey,
    number: LeaseNumber,
) {
    let sent_at = Moment::now();
    let ttl = engine.event(&key, |lane, _| lane.start_extension(number, home, sent_at));
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
