//! The releases of leases of unknown fate, and of leases that left the queue of the backend, without their lanes. The
//! watchdog retries them until the backend replies or the leases must have expired.

use std::sync::Arc;

use super::releaser::expect_replies;
use crate::LockKey;
use crate::backend::Release;
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::lease::LeaseNumber;

/// Sends what is due.
pub(super) fn send(engine: &Arc<Engine>, now: Moment) {
    while let Some((group, leases)) = engine.home.unconfirmed.next_command(now) {
        let command = release(Arc::clone(engine), group, leases);
        engine.home.spawn(command);
    }
}

/// Sends one command for a group of keys.
async fn release(engine: Arc<Engine>, group: u64, leases: Vec<(LockKey, LeaseNumber)>) {
    let releases = leases
        .iter()
        .map(|(key, number)| Release::new(key.clone(), engine.lease_id(*number)));
    let outcomes = Arc::clone(&engine.backend).leave(releases.collect()).await;
    let (now, unconfirmed) = (engine.now(), &engine.home.unconfirmed);
    let replies: Vec<_> = leases.into_iter().zip(outcomes).collect();
    for (_, outcome) in &replies {
        expect_replies(&engine, outcome, now);
    }
    // The leases of one key are adjacent.
    for of_key in replies.chunk_by(|((one, _), _), ((other, _), _)| one == other) {
        let resolved = of_key.iter().filter(|(_, outcome)| outcome.is_ok());
        let resolved: Vec<_> = resolved.map(|((_, number), _)| *number).collect();
        let failed = resolved.len() < of_key.len();
        unconfirmed.replied(&of_key[0].0.0, &resolved, failed, now);
    }
    unconfirmed.ended(group);
    engine.home.watchdog.earlier.notify_one();
}

#[cfg(test)]
mod tests;
