//! The table of the lanes of one manager, by key.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashTable;
use tokio::sync::Notify;

use super::clock::Moment;
use super::clock::timeout::until;
use crate::LockKey;
use crate::lock::lane::{Effects, Lane};
use crate::mutex::Mutex;
use deadlines::{Deadlines, Entry};

pub(super) mod counts;
pub(super) mod deadlines;
#[cfg(feature = "dashboard")]
pub(super) mod hot;
mod parts;
mod round;

pub(super) use round::DueRenewal;

pub(crate) const SHARDS: usize = 64;

/// On cache lines of its own, because all cores write them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    /// Boxed because a table reserves space for many more lanes than it holds.
    lanes: HashTable<Box<Slot>>,
    /// The box of the lane that left last, so that a key that comes and goes allocates none.
    spare: Option<Box<Slot>>,
    deadlines: Deadlines,
}

#[derive(Debug)]
struct Slot {
    key: LockKey,
    lane: Lane,
    /// The earliest entry of the lane in the index.
    scheduled: Option<Moment>,
}

/// The lanes of one manager. A lane is in the table while it is not idle.
///
/// The mutex of a shard is that of its lanes. Code under it does not wait, lock another shard or drop a hold. It may wake a
/// task of an engine, but never a caller, and runs no code of the program. It may lock the mutexes of a waiter, of the seats
/// and of the backend in memory: code under these locks no shard.
#[derive(Debug)]
pub(crate) struct Lanes {
    shards: [Mutex<Shard>; SHARDS],
    /// Whether a caller waits for the table to be empty.
    awaited: AtomicBool,
    /// Notified when a lane is removed, when its work was started, and when a lease is returned, if `awaited` is set.
    left: Notify,
    /// The work without a lane that may yet release a lease: what idle or yielding lanes left to start, such as the retry of
    /// a failed release, and replaced first attempts without a reply.
    unstarted: AtomicUsize,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            awaited: AtomicBool::new(false),
            left: Notify::new(),
            unstarted: AtomicUsize::new(0),
        }
    }

    /// Applies one event to the lane of `key`.
    pub(crate) fn with<R>(
        &self,
        key: &LockKey,
        effects: &mut Effects,
        event: impl FnOnce(&mut Lane, &mut Effects) -> R,
    ) -> R {
        let hash = key.hash_code();
        let mut guard = self.shards[shard_of(hash)].lock();
        let shard = &mut *guard;
        let entry = shard
            .lanes
            .entry(hash, |slot| slot.key == *key, |slot| slot.key.hash_code());
        let mut slot = entry.or_insert_with(|| Slot::new(key, shard.spare.take()));
        let lane = &mut slot.get_mut().lane;
        let result = event(lane, effects);
        let is_idle = lane.is_idle();
        self.count_work(lane, effects);
        if is_idle {
            shard.spare = Some(slot.remove().0.emptied());
            self.have_left(guard);
        } else if Self::schedule(slot.get_mut(), hash, &mut shard.deadlines, effects) {
            shard.drop_stale();
        }
        result
    }

    /// Adds the next deadline of a lane to the index. Returns `true` if the index has grown.
    ///
    /// Most events change no deadline, so only that comparison is inline.
    #[inline(always)]
    fn schedule(
        slot: &mut Slot,
        hash: u64,
        deadlines: &mut Deadlines,
        effects: &mut Effects,
    ) -> bool {
        match slot.lane.next_check() {
            Some(at) if slot.scheduled.is_none_or(|earlier| at < earlier) => {
                Self::enter(at, slot, hash, deadlines, effects)
            }
            _ => false,
        }
    }

    #[inline(never)]
    fn enter(
        at: Moment,
        slot: &mut Slot,
        hash: u64,
        deadlines: &mut Deadlines,
        effects: &mut Effects,
    ) -> bool {
        slot.scheduled = Some(at);
        if deadlines.push(Entry { at, hash }) {
            effects.deadlines.push(at);
        }
        true
    }

    /// Reads the lane of a key, if there is one.
    pub(crate) fn inspect<R>(&self, key: &LockKey, check: impl FnOnce(&Lane) -> R) -> Option<R> {
        let hash = key.hash_code();
        let shard = self.shards[shard_of(hash)].lock();
        let slot = shard.lanes.find(hash, |slot| slot.key == *key);
        slot.map(|slot| check(&slot.lane))
    }

    /// Counts the work that a lane leaves, under the mutex of its shard: its own if it is idle or only yields, and a first
    /// attempt that was replaced.
    fn count_work(&self, lane: &Lane, effects: &mut Effects) {
        if effects.work.is_empty() {
            return;
        }
        effects.outlive_lane = lane.is_idle() || lane.is_yielding();
        let outlives = usize::from(effects.outlive_lane) + usize::from(effects.left_attempt);
        if outlives > 0 {
            self.unstarted.fetch_add(outlives, Ordering::Relaxed);
        }
    }

    /// Returns the amount of work without a lane.
    pub(crate) fn unstarted(&self) -> usize {
        self.unstarted.load(Ordering::SeqCst)
    }

    /// Such work was started, or has ended. A lease that it releases was added to the unconfirmed ones before.
    pub(crate) fn started(&self) {
        self.unstarted.fetch_sub(1, Ordering::SeqCst);
        self.have_changed();
    }

    /// Wakes the callers that wait for the table to be empty, or for its locks to be free.
    pub(crate) fn have_changed(&self) {
        if self.awaited.load(Ordering::SeqCst) {
            self.left.notify_waiters();
        }
    }

    fn have_left(&self, mut shard: MutexGuard<'_, Shard>) {
        // An empty shard frees its memory after a burst.
        if shard.lanes.is_empty() && shard.lanes.capacity() > 1024 {
            *shard = Shard::default();
        }
        // Under the mutex: `emptied` checks this shard after it has set the flag.
        if self.awaited.load(Ordering::Relaxed) {
            drop(shard);
            self.left.notify_waiters();
        }
    }

    /// Returns `true` if the index has entries.
    pub(crate) fn has_deadlines(&self) -> bool {
        (self.shards.iter()).any(|shard| shard.lock().deadlines.first().is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards
            .iter()
            .all(|shard| shard.lock().lanes.is_empty())
    }

    /// Drops the entries of removed lanes. Returns `true` if no lane is left.
    pub(crate) fn forget_if_empty(&self) -> bool {
        for shard in &self.shards {
            let mut shard = shard.lock();
            if !shard.lanes.is_empty() {
                return false;
            }
            shard.deadlines = Deadlines::default();
        }
        true
    }

    /// Completes when the table has no lane, and the work that the lanes left was started.
    pub(crate) async fn emptied(&self) {
        // A removal counts its work under a mutex that the first check locks.
        self.until(|| self.is_empty() && self.unstarted() == 0)
            .await;
    }

    /// Completes when no lane is held or waited for.
    pub(crate) async fn unused(&self) {
        let is_used = |lane: &Lane| lane.is_held() || lane.seats_taken() > 0;
        let is_free =
            |shard: &Mutex<Shard>| !shard.lock().lanes.iter().any(|slot| is_used(&slot.lane));
        self.until(|| self.shards.iter().all(is_free)).await;
    }

    async fn until(&self, is_over: impl Fn() -> bool) {
        self.awaited.store(true, Ordering::SeqCst);
        until(&self.left, is_over).await;
    }
}

impl Slot {
    /// Uses the box of an emptied slot, if there is one.
    fn new(key: &LockKey, spare: Option<Box<Self>>) -> Box<Self> {
        let key = key.clone();
        match spare {
            Some(mut slot) => {
                slot.key = key;
                slot
            }
            None => Box::new(Self {
                key,
                lane: Lane::default(),
                scheduled: None,
            }),
        }
    }

    fn emptied(mut self: Box<Self>) -> Box<Self> {
        self.lane = Lane::default();
        self.scheduled = None;
        self
    }
}

impl Shard {
    #[inline]
    fn drop_stale(&mut self) {
        let lanes = &self.lanes;
        let is_live = |entry: &Entry| {
            let mut lanes = lanes.iter_hash(entry.hash);
            lanes.any(|slot| slot.scheduled == Some(entry.at))
        };
        self.deadlines.drop_stale(lanes.len(), is_live);
    }
}

/// The hash table uses the high and the low bits. All lanes of one lock have these bits in common.
fn shard_of(hash: u64) -> usize {
    (hash >> 24) as usize % SHARDS
}

#[cfg(test)]
mod tests;
