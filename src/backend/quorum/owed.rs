//! The releases that a node has not confirmed, and the tasks that repeat them.
//!
//! A node that hangs accumulates one for each lease that it may have granted. A task repeats them in batches,
//! one command at a time. At [`FULL`], the node receives no further votes, to which it would not reply either.
//! Each runtime that adds one has a task of its own, because another runtime may idle or block.
//!
//! After the first seconds the task ends with the backend, whose connections it would keep open: a majority has
//! confirmed these releases or never granted the leases, so what is left at a minority delays no acquire, and expires.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::inner::Inner;
use super::ledger::Claim;
use super::release::unconfirmed;
use crate::jitter::jittered;
use crate::task::{RuntimeId, Timer};

/// The most leases of one command.
const BATCH: usize = 100;

/// The number of releases at which a node receives no further votes.
pub(super) const FULL: usize = 10_000;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The time from its start for which the task keeps the backend, which may have been dropped.
const KEPT: Duration = Duration::from_secs(2);

/// The releases that one node has not confirmed.
#[derive(Debug, Default)]
pub(super) struct Owed(Mutex<OwedClaims>);

#[derive(Debug, Default)]
struct OwedClaims {
    claims: VecDeque<Claim>,
    /// The number of claims in commands in flight.
    sent: usize,
    /// The runtimes in which a task runs.
    runtimes: Vec<RuntimeId>,
}

impl Owed {
    fn state(&self) -> MutexGuard<'_, OwedClaims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_full(&self) -> bool {
        let state = self.state();
        state.claims.len() + state.sent >= FULL
    }

    fn push(&self, claim: Claim) {
        self.state().claims.push_back(claim);
    }

    /// Returns `true` if this runtime has no task, so the caller has to start it.
    fn start(&self, runtime: RuntimeId) -> bool {
        let runtimes = &mut self.state().runtimes;
        let starts = !runtimes.contains(&runtime);
        if starts {
            runtimes.push(runtime);
        }
        starts
    }

    /// Removes the next claims, without those whose leases must have expired. After `None`, the task of this runtime
    /// ends.
    fn next_batch(&self, runtime: RuntimeId, now: Instant) -> Option<Vec<(usize, Claim)>> {
        let mut state = self.state();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(claim) = state.claims.pop_front()
        {
            if claim.is_owed(now) {
                batch.push((batch.len(), claim));
            } else {
                claim.out();
            }
        }
        if batch.is_empty() {
            state.runtimes.retain(|other| *other != runtime);
            return None;
        }
        state.sent += batch.len();
        Some(batch)
    }

    /// Adds the claims of a command of `sent` claims that the node did not confirm.
    fn put_back(&self, sent: usize, claims: Vec<Claim>) {
        let mut state = self.state();
        state.sent -= sent;
        state.claims.extend(claims);
    }
}

impl Inner {
    /// Repeats releases until each is confirmed or its lease must have expired, or for at most [`KEPT`] if the
    /// backend is dropped.
    pub(super) fn owe(self: &Arc<Self>, claims: impl IntoIterator<Item = Claim>) {
        for claim in claims {
            let node = claim.node();
            self.owed[node].push(claim);
            self.start_repeat(node);
        }
    }

    /// Returns `true` if a node owes so many releases that it receives no votes.
    pub(super) fn is_behind(self: &Arc<Self>, node: usize) -> bool {
        let is_behind = self.owed[node].is_full();
        if is_behind {
            self.start_repeat(node);
        }
        is_behind
    }

    fn start_repeat(self: &Arc<Self>, node: usize) {
        let Some(runtime) = self.spawner.runtime() else {
            return;
        };
        if self.owed[node].start(runtime.id()) {
            let running = ReleaseTask {
                inner: Arc::downgrade(self),
                node,
                runtime: runtime.id(),
                over: false,
                sent: 0,
            };
            runtime.spawn(repeat(running, Arc::clone(self)));
        }
    }
}

/// Reports the end of the task, even if its runtime drops it.
struct ReleaseTask {
    inner: Weak<Inner>,
    node: usize,
    runtime: RuntimeId,
    over: bool,
    /// The number of claims in its command in flight.
    sent: usize,
}

impl Drop for ReleaseTask {
    fn drop(&mut self) {
        if !self.over
            && let Some(inner) = self.inner.upgrade()
        {
            let mut state = inner.owed[self.node].state();
            state.sent -= self.sent;
            state.runtimes.retain(|other| *other != self.runtime);
        }
    }
}

async fn repeat(mut running: ReleaseTask, inner: Arc<Inner>) {
    let (node, kept_until) = (running.node, Instant::now() + KEPT);
    let mut kept = Some(inner);
    let mut pause = FIRST_BACKOFF;
    loop {
        Timer::at(Instant::now() + jittered(pause)).await;
        pause = (pause * 2).min(LAST_BACKOFF);
        if Instant::now() >= kept_until {
            kept = None;
        }
        let Some(inner) = kept.clone().or_else(|| running.inner.upgrade()) else {
            return;
        };
        // A node that confirms some receives the others at once.
        loop {
            let owed = &inner.owed[node];
            let Some(batch) = owed.next_batch(running.runtime, Instant::now()) else {
                running.over = true;
                return;
            };
            running.sent = batch.len();
            let failed: Vec<_> = unconfirmed(inner.release_at(node, batch).await).collect();
            let sent = std::mem::take(&mut running.sent);
            let none_confirmed = failed.len() == sent;
            owed.put_back(sent, failed);
            if none_confirmed {
                break;
            }
            pause = FIRST_BACKOFF;
        }
    }
}
