//! The resolver: one task per runtime that releases leases of unknown fate, and leases that left the queue of
//! the backend, without their lanes. It retries until the backend replies or the leases must have expired. The reply to
//! the task of one runtime counts for the others.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;

use tokio::time::sleep_until;

use super::backlog::{Backlog, Batch};
use super::clock::Moment;
use super::engine::Engine;
use super::home::Home;
use super::unresolved::{BATCH, Step, UnknownLease};
use crate::LockKey;
use crate::backend::Release;

/// Adds a lease.
pub(super) fn add(engine: &Arc<Engine>, home: &Arc<Home>, key: &LockKey, lease: UnknownLease) {
    if home.unresolved.add(key.clone(), lease) {
        let running = Running {
            engine: Arc::clone(engine),
            home: Arc::clone(home),
            over: false,
        };
        home.runtime.spawn(run(running));
    }
}

/// Reports the end of the task, even if its runtime drops it.
struct Running {
    engine: Arc<Engine>,
    home: Arc<Home>,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Self { engine, home, over } = self;
        if *over {
            return;
        }
        engine.homes.end(home.id);
        for (key, lease) in home.unresolved.abandon() {
            engine.resolve_lease(&key, lease, home.id);
        }
    }
}

async fn run(mut running: Running) {
    let Running { engine, home, .. } = &running;
    let unresolved = &home.unresolved;
    // Subscribes before the first attempt, so no later recovery is missed.
    let mut recoveries = engine.backend.recoveries();
    let mut groups = HashMap::<u64, Arc<Backlog>>::new();
    loop {
        let wakes_at = match unresolved.next_step(Moment::now()) {
            Step::End => break,
            Step::Release(leases) => {
                for batch in engine.in_batches(leases, BATCH, |(key, _)| key) {
                    let backlog = groups.entry(engine.backend.group(&batch[0].0)).or_default();
                    if backlog.add(batch) {
                        let (engine, home) = (Arc::clone(engine), Arc::clone(home));
                        home.runtime
                            .clone()
                            .spawn(send(engine, home, Arc::clone(backlog)));
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
async fn send(engine: Arc<Engine>, home: Arc<Home>, backlog: Arc<Backlog>) {
    while let Some(leases) = backlog.next() {
        release(&engine, &home, leases).await;
    }
}

async fn release(engine: &Engine, home: &Home, leases: Batch) {
    let releases = leases
        .iter()
        .map(|(key, number)| Release::new(key.clone(), engine.lease_id(*number)));
    let sent_at = Moment::now();
    let outcomes = Arc::clone(&engine.backend).leave(releases.collect()).await;
    let now = Moment::now();
    let mut replies = leases.into_iter().zip(outcomes).peekable();
    // The leases of one key are adjacent.
    while let Some(((key, number), outcome)) = replies.next() {
        let mut resolved = Vec::new();
        let mut failed = outcome.is_err();
        resolved.extend(outcome.is_ok().then_some(number));
        while let Some(((_, number), outcome)) = replies.next_if(|((next, _), _)| *next == key) {
            failed |= outcome.is_err();
            resolved.extend(outcome.is_ok().then_some(number));
        }
        home.unresolved.replied(&key, &resolved, failed, now);
        for lease in resolved {
            engine.homes.released(&key, lease, sent_at);
        }
    }
    home.unresolved.changed.notify_one();
}

#[cfg(test)]
mod tests;
