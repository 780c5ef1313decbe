//! One task that releases leases of unknown fate, and leases that left the queue of
//! the backend, without their lanes. It retries until the backend replies or the leases must have expired.

use std::sync::Arc;

use tokio::time::sleep_until;

use super::releaser::expect_replies;
use crate::LockKey;
use crate::backend::Release;
use crate::lock::engine::Engine;
use crate::lock::engine::unconfirmed::{Step, UnknownLease};
use crate::lock::lease::LeaseNumber;
use crate::task::is_panicking;

/// Adds a lease.
pub(in crate::lock) fn add(engine: &Arc<Engine>, key: &LockKey, lease: UnknownLease) {
    let group = engine.backend.group(key);
    if engine.home.unconfirmed.add(key.clone(), group, lease) {
        spawn(engine);
    }
}

/// Starts the task, unless it runs or has nothing to do.
pub(in crate::lock) fn start(engine: &Arc<Engine>) {
    if engine.home.unconfirmed.start() {
        spawn(engine);
    }
}

fn spawn(engine: &Arc<Engine>) {
    let running = Running {
        engine: Arc::clone(engine),
        began: false,
        over: false,
    };
    engine.home.spawn(run(running));
}

/// Reports the end of the task, even if its runtime drops it.
struct Running {
    engine: Arc<Engine>,
    /// A runtime that has ended drops a new task unpolled. Another one would end likewise.
    began: bool,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            let home = &self.engine.home;
            home.task_was_dropped();
            home.unconfirmed.stopped();
            if home.is_over() {
                // The leases expire.
                home.unconfirmed.abandon();
            } else if self.began && is_panicking() {
                start(&self.engine);
            }
        }
    }
}

async fn run(mut running: Running) {
    running.began = true;
    let engine = &running.engine;
    let unconfirmed = &engine.home.unconfirmed;
    // Subscribes before the first attempt, so no later recovery is missed.
    let mut recoveries = engine.backend.recoveries();
    loop {
        let now = engine.now();
        let tick = match unconfirmed.next_step(now) {
            Step::End => break,
            Step::Release(group, leases) => {
                let task = release(Arc::clone(engine), group, leases);
                engine.home.spawn(task);
                continue;
            }
            Step::Wait(tick) => tick,
        };
        tokio::select! {
            biased;
            () = sleep_until(tick.unwrap_or(now).into()), if tick.is_some() => {}
            () = unconfirmed.changed.notified() => {}
            // Other processes may wait for these keys, so they are retried at once.
            _ = recoveries.next() => unconfirmed.retry_now(),
        }
    }
    running.over = true;
}

/// Sends one command for a group of keys.
async fn release(engine: Arc<Engine>, group: u64, leases: Vec<(LockKey, LeaseNumber)>) {
    let releases = leases
        .iter()
        .map(|(key, number)| Release::new(key.clone(), engine.lease_id(*number)));
    let outcomes = Arc::clone(&engine.backend).leave(releases.collect()).await;
    let now = engine.now();
    let replies: Vec<_> = leases.into_iter().zip(outcomes).collect();
    // The leases of one key are adjacent.
    for (_, outcome) in &replies {
        expect_replies(&engine, outcome, now);
    }
    for of_key in replies.chunk_by(|((one, _), _), ((other, _), _)| one == other) {
        let resolved = of_key.iter().filter(|(_, outcome)| outcome.is_ok());
        let resolved: Vec<_> = resolved.map(|((_, number), _)| *number).collect();
        let failed = resolved.len() < of_key.len();
        (engine.home.unconfirmed).replied(&of_key[0].0.0, &resolved, failed, now);
    }
    engine.home.unconfirmed.ended(group);
}

#[cfg(test)]
mod tests;
