//! Asks the backend, while a busy key is handed on, whether that may go on: ahead of need, so that those who
//! queue do not have to wait for the answer.
//!
//! It is asked at a hand-off. Where each holder takes longer than a budget lasts, there is none in time, and
//! the lease is passed as before.

use std::sync::Arc;

use super::engine::Engine;
use super::lease::LeaseNumber;
use super::moment::Moment;
use super::watchdog;
use crate::LockKey;
use crate::backend::{BackendError, Extended, Renewal};

/// A task of its own: whoever gave the key up does not wait for it. Dropped with its runtime, it leaves the
/// lease as an unanswered renewal does: it runs out.
pub(super) async fn extend(engine: Arc<Engine>, key: LockKey, number: LeaseNumber) {
    let sent_at = Moment::now();
    let ttl = (engine.lanes).with(&key, |lane| lane.start_extension(number, sent_at));
    let Some(ttl) = ttl else { return };
    let extension = Renewal::new(key.clone(), engine.lease_id(number), ttl);
    let backend = Arc::clone(&engine.backend);
    let outcome = backend.extend(key, extension.lease, ttl).await;
    let answered = engine.lanes.with(&extension.key, |lane| {
        lane.extended(&extension, sent_at, &outcome, Moment::now())
    });
    watchdog::follow(&engine, &extension, answered, may_have_extended(&outcome));
}

fn may_have_extended(outcome: &Result<Extended, BackendError>) -> bool {
    match outcome {
        Ok(Extended::Kept { .. }) => true,
        Ok(Extended::Wanted { .. } | Extended::NotHeld) => false,
        Err(error) => error.may_have_taken_effect(),
    }
}
