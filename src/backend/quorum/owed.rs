//! The releases that a node has not confirmed, and the tasks that repeat them.
//!
//! The [ledger](super::ledger) knows which leases a node owes. A task repeats their releases in batches, one command at a
//! time. Each runtime that leaves one has a task of its own for that node, because another runtime may idle or block, and
//! another node may hang.
//!
//! After the first seconds the task ends with the backend, whose connections it would keep open: a majority has
//! confirmed these releases or never granted the leases, or the engine repeats them. What is left at a minority delays no
//! acquire, and expires.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::inner::Inner;
use super::ledger::Ledger;
use crate::jitter::jittered;
use crate::task::{Runtime, RuntimeId, Timer};

/// The most leases of one command.
const BATCH: usize = 100;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The time from its start for which the task keeps the backend, which may have been dropped.
const KEPT: Duration = Duration::from_secs(2);

/// The tasks that repeat releases, by node and runtime. Each owns a value, which also ends if its runtime drops it.
pub(super) type Repeating = HashMap<(usize, RuntimeId), Weak<()>>;

impl Inner {
    /// Repeats the releases that a node owes until each is confirmed or its lease must have expired, or for at most
    /// [`KEPT`] if the backend is dropped.
    pub(super) fn repeat_releases(self: &Arc<Self>, node: usize) {
        let Some(runtime) = Runtime::current() else {
            return;
        };
        let alive = Arc::new(());
        let mut repeating = self.repeating.lock();
        repeating.retain(|_, alive| alive.strong_count() > 0);
        if let Entry::Vacant(task) = repeating.entry((node, runtime.id())) {
            task.insert(Arc::downgrade(&alive));
            drop(repeating);
            runtime.spawn(repeat(Arc::clone(self), node, alive));
        }
    }
}

/// The task of one node and runtime. It pauses after a command of which the node confirms nothing.
async fn repeat(inner: Arc<Inner>, node: usize, alive: Arc<()>) {
    let (backend, kept_until) = (Arc::downgrade(&inner), Instant::now() + KEPT);
    let mut kept = Some(inner);
    let mut pause = FIRST_BACKOFF;
    while let Some(inner) = kept.take().or_else(|| backend.upgrade()) {
        let owed = Ledger::owed(&inner.ledger, node, BATCH);
        let confirms = !owed.is_empty() && {
            let batch = owed.into_iter().enumerate().collect();
            let answers = inner.release_at(node, batch).await;
            answers.iter().any(|(_, outcome)| outcome.is_ok())
        };
        {
            // Under the lock of the check, so that a release which fails later starts another task.
            let _repeating = inner.repeating.lock();
            if inner.ledger.lock().owes(node) == 0 {
                return drop(alive);
            }
        }
        kept = (Instant::now() < kept_until).then_some(inner);
        if confirms {
            pause = FIRST_BACKOFF;
        } else {
            Timer::at(Instant::now() + jittered(pause)).await;
            pause = (pause * 2).min(LAST_BACKOFF);
        }
    }
}
