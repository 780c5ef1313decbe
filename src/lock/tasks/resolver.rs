//! The resolver: one task that releases leases of unknown fate, and leases that left the queue of
//! the backend, without their lanes. It retries until the backend replies or the leases must have expired.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;

use tokio::time::sleep_until;

use super::releaser::expect_replies;
use crate::LockKey;
use crate::backend::Release;
use crate::lock::engine::Engine;
use crate::lock::engine::backlog::{Backlog, Batch};
use crate::lock::engine::unresolved::{BATCH, Step, UnknownLease};
use crate::task::is_panicking;

/// Adds a lease.
pub(in crate::lock) fn add(engine: &Arc<Engine>, key: &LockKey, lease: UnknownLease) {
    if engine.home.unresolved.add(key.clone(), lease) {
        spawn(engine);
    }
}

/// Starts the task, unless it runs or has nothing to do.
pub(in crate::lock) fn start(engine: &Arc<Engine>) {
    if engine.home.unresolved.start() {
        spawn(engine);
    }
}

fn spawn(engine: &Arc<Engine>) {
    let running = Running {
        engine: Arc::clone(engine),
        over: false,
    };
    engine.home.spawn(run(running));
}

/// Reports the end of the task, even if its runtime drops it.
struct Running {
    engine: Arc<Engine>,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            let home = &self.engine.home;
            home.task_was_dropped();
            home.unresolved.stopped();
            if home.is_over() {
                // The leases expire.
                home.unresolved.abandon();
            } else if is_panicking() {
                start(&self.engine);
            }
        }
    }
}

async fn run(mut running: Running) {
    let engine = &running.engine;
    let unresolved = &engine.home.unresolved;
    // Subscribes before the first attempt, so no later recovery is missed.
    let mut recoveries = engine.backend.recoveries();
    let mut groups = HashMap::<u64, Arc<Backlog>>::new();
    loop {
        let wakes_at = match unresolved.next_step(engine.now()) {
            Step::End => break,
            Step::Release(leases) => {
                for batch in engine.in_batches(leases, BATCH, |(key, _)| key) {
                    let backlog = groups.entry(engine.backend.group(&batch[0].0)).or_default();
                    if backlog.add(batch) {
                        let task = send(Arc::clone(engine), Arc::clone(backlog));
                        engine.home.spawn(task);
                    }
                }
                continue;
            }
            Step::WaitUntil(at) => Some(at),
            Step::Wait => None,
        };
        let timer = async {
            match wakes_at {
                Some(at) => sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = timer => {}
            () = unresolved.changed.notified() => {}
            // Other processes may wait for these keys, so they are retried at once.
            _ = recoveries.next() => unresolved.retry_now(),
        }
    }
    running.over = true;
}

/// Sends one command at a time, so one that hangs delays only what is in it.
async fn send(engine: Arc<Engine>, backlog: Arc<Backlog>) {
    while let Some(leases) = backlog.next() {
        release(&engine, leases).await;
    }
}

async fn release(engine: &Engine, leases: Batch) {
    let releases = leases
        .iter()
        .map(|(key, number)| Release::new(key.clone(), engine.lease_id(*number)));
    let outcomes = Arc::clone(&engine.backend).leave(releases.collect()).await;
    let now = engine.now();
    let mut replies = leases.into_iter().zip(outcomes).peekable();
    // The leases of one key are adjacent.
    while let Some(((key, number), outcome)) = replies.next() {
        expect_replies(engine, &outcome, now);
        let mut resolved = Vec::new();
        let mut failed = outcome.is_err();
        resolved.extend(outcome.is_ok().then_some(number));
        while let Some(((_, number), outcome)) = replies.next_if(|((next, _), _)| *next == key) {
            failed |= outcome.is_err();
            resolved.extend(outcome.is_ok().then_some(number));
        }
        (engine.home.unresolved).replied(&key, &resolved, failed, now);
    }
    engine.home.unresolved.changed.notify_one();
}

#[cfg(test)]
mod tests;
