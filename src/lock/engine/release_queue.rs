//! The queue of keys whose leases have to be returned, and whether its task runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::LockKey;
use crate::mutex::Mutex;

/// The queue of one manager. Has its own cache line, because each release writes it, and other cores
/// would have to reload the neighboring data.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ReleaseQueue {
    keys: Mutex<VecDeque<LockKey>>,
    /// Whether keys have waited since the last tick of the watchdog, without a round.
    waits: AtomicBool,
    running: AtomicBool,
    /// Notified when a key is enqueued.
    enqueued: Notify,
}

impl ReleaseQueue {
    /// Adds a key. Never blocks, and needs no runtime.
    pub(crate) fn push(&self, key: LockKey) {
        let first = {
            let mut keys = self.keys.lock();
            keys.push_back(key);
            keys.len() == 1
        };
        // One notification suffices: the task drains the whole queue.
        if first {
            self.enqueued.notify_one();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.lock().is_empty()
    }

    /// Removes and returns up to `most` keys.
    pub(crate) fn next_round(&self, most: usize) -> Vec<LockKey> {
        self.waits.store(false, Ordering::Relaxed);
        let mut keys = self.keys.lock();
        let size = keys.len().min(most);
        // Keeps the capacity of a normal round, but not that of a burst.
        let round = keys.drain(..size).collect();
        if keys.is_empty() {
            keys.shrink_to(most);
        }
        round
    }

    /// Returns `true` if keys have waited since the last call without a round: the runtime of the task may block.
    pub(crate) fn is_stuck(&self) -> bool {
        let waits = !self.is_empty();
        self.waits.swap(waits, Ordering::Relaxed) && waits
    }

    /// Completes when the queue has a key.
    pub(crate) async fn has_more(&self) {
        while self.is_empty() {
            self.enqueued.notified().await;
        }
    }

    /// Returns `true` if the task has something to do and does not run, so the caller has to start it.
    pub(crate) fn start(&self) -> bool {
        // The task mostly runs, and a read costs less than a write.
        let is_running = self.running.load(Ordering::SeqCst);
        !is_running && !self.is_empty() && !self.running.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn stopped(&self) {
        self.running.store(false, Ordering::SeqCst);
    }
}
