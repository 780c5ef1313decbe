//! The keys whose leases are to be returned, and whether a task is at it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::LockKey;

/// On a cache line of its own: each release writes it, and what lies on the same line would be fetched
/// again by all other cores.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ReleaseQueue {
    keys: Mutex<VecDeque<LockKey>>,
    running: AtomicBool,
    /// Notified when a key is enqueued.
    enqueued: Notify,
}

impl ReleaseQueue {
    fn keys(&self) -> MutexGuard<'_, VecDeque<LockKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key. Never blocks, and needs no runtime to be called.
    pub(super) fn push(&self, key: LockKey) {
        let first = {
            let mut keys = self.keys();
            keys.push_back(key);
            keys.len() == 1
        };
        // The task takes along those behind the first.
        if first {
            self.enqueued.notify_one();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// Returns the next keys, at most `most`.
    pub(super) fn next_round(&self, most: usize) -> Vec<LockKey> {
        let mut keys = self.keys();
        let size = keys.len().min(most);
        // The queue keeps its room for those who come next; not that of a burst.
        let round = keys.drain(..size).collect();
        if keys.is_empty() {
            keys.shrink_to(most);
        }
        round
    }

    /// Completes when there is a key in the queue.
    pub(super) async fn has_more(&self) {
        while self.is_empty() {
            self.enqueued.notified().await;
        }
    }

    /// Returns `true` if the task does not run, and has to be started by the caller.
    pub(super) fn start(&self) -> bool {
        // It mostly runs, and to look costs less than to write.
        !self.running.load(Ordering::SeqCst) && !self.running.swap(true, Ordering::SeqCst)
    }

    pub(super) fn stopped(&self) {
        self.running.store(false, Ordering::SeqCst);
    }
}
