//! The lanes of one manager, by key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::lane::Lane;
use crate::LockKey;
use crate::key::KeyMap;

const SHARDS: usize = 64;

type Shard = KeyMap<Lane>;

/// A lane is in the table from the first event that makes it busy to the one that leaves it idle.
/// Under the mutex of a shard nothing waits, no other shard is taken, and no hold is dropped; at most
/// a task of this engine is woken, never a caller who is served or refused.
#[derive(Debug)]
pub(super) struct Lanes {
    shards: [Mutex<Shard>; SHARDS],
    /// Somebody waits until there is no lane.
    awaited: AtomicBool,
    /// Told then when one has left.
    left: Notify,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            awaited: AtomicBool::new(false),
            left: Notify::new(),
        }
    }

    /// Lets one event happen to the lane of `key`.
    pub(super) fn with<R>(&self, key: &LockKey, event: impl FnOnce(&mut Lane) -> R) -> R {
        // The map itself uses the high and the low bits.
        let shard = &self.shards[(key.hash_code() >> 24) as usize % SHARDS];
        let mut shard = lock(shard);
        let Some(lane) = shard.get_mut(key) else {
            let mut lane = Lane::default();
            let result = event(&mut lane);
            if !lane.is_idle() {
                shard.insert(key.clone(), lane);
            }
            return result;
        };
        let result = event(lane);
        if lane.is_idle() {
            shard.remove(key);
            self.have_left(shard);
        }
        result
    }

    /// Lets something happen to every lane, one shard at a time.
    pub(super) fn for_each(&self, mut event: impl FnMut(&LockKey, &mut Lane)) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let lanes = shard.len();
            shard.retain(|key, lane| {
                event(key, lane);
                !lane.is_idle()
            });
            if shard.len() < lanes {
                self.have_left(shard);
            }
        }
    }

    fn have_left(&self, mut shard: MutexGuard<'_, Shard>) {
        // An idle map gives its memory back after a burst.
        if shard.is_empty() && shard.capacity() > 1024 {
            shard.shrink_to_fit();
        }
        // Under the mutex: whoever waits looks into this shard after it has set the flag.
        if self.awaited.load(Ordering::Relaxed) {
            drop(shard);
            self.left.notify_waiters();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| lock(shard).is_empty())
    }

    /// Waits until there is no lane.
    pub(super) async fn emptied(&self) {
        self.awaited.store(true, Ordering::Relaxed);
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            // Listen first, then look.
            left.as_mut().enable();
            if self.is_empty() {
                return;
            }
            left.await;
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
