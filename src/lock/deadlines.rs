//! The ordered index of deadlines: when each watchdog has to check which lane.
//!
//! Each shard of the lane table has one index, under its mutex, with one heap per runtime. A lock held
//! briefly costs one push. Its entry outlives its lane, and is dropped when its time comes or when
//! stale entries outnumber the live ones.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::clock::Moment;
use crate::task::RuntimeId;

/// The number of stale entries that are always tolerated.
const SLACK: usize = 64;

type Heap = BinaryHeap<Reverse<Entry>>;

/// When to check the lanes whose keys have this hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) at: Moment,
    pub(super) hash: u64,
}

#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heaps: Vec<(RuntimeId, Heap)>,
}

impl Deadlines {
    /// Adds an entry. Returns `true` if it is the earliest of its runtime, whose watchdog must be notified.
    #[inline]
    pub(super) fn push(&mut self, home: RuntimeId, entry: Entry) -> bool {
        let heap = self.heap(home);
        let is_first = heap.peek().is_none_or(|Reverse(first)| entry.at < first.at);
        heap.push(Reverse(entry));
        is_first
    }

    fn heap(&mut self, home: RuntimeId) -> &mut Heap {
        let at = self.heaps.iter().position(|(id, _)| *id == home);
        let at = at.unwrap_or_else(|| {
            self.heaps.push((home, Heap::new()));
            self.heaps.len() - 1
        });
        &mut self.heaps[at].1
    }

    pub(super) fn first(&self, home: RuntimeId) -> Option<Entry> {
        let (_, heap) = self.heaps.iter().find(|(id, _)| *id == home)?;
        heap.peek().map(|Reverse(entry)| *entry)
    }

    pub(super) fn pop(&mut self, home: RuntimeId) -> Option<Entry> {
        self.heap(home).pop().map(|Reverse(entry)| entry)
    }

    pub(super) fn len(&self, home: RuntimeId) -> usize {
        let heap = self.heaps.iter().find(|(id, _)| *id == home);
        heap.map_or(0, |(_, heap)| heap.len())
    }

    /// Drops stale entries once they outnumber the lanes.
    #[inline]
    pub(super) fn drop_stale(
        &mut self,
        home: RuntimeId,
        lanes: usize,
        is_live: impl Fn(&Entry) -> bool,
    ) {
        let heap = self.heap(home);
        if heap.len() > 2 * lanes + SLACK {
            retain(heap, is_live);
        }
    }

    /// Drops all entries.
    pub(super) fn clear(&mut self) {
        self.heaps.clear();
    }

    /// Moves the entries of an ended runtime to another.
    pub(super) fn adopt(&mut self, ended: RuntimeId, home: RuntimeId) {
        if let Some(at) = self.heaps.iter().position(|(id, _)| *id == ended) {
            let (_, mut entries) = self.heaps.swap_remove(at);
            self.heap(home).append(&mut entries);
        }
    }
}

#[cold]
fn retain(heap: &mut Heap, is_live: impl Fn(&Entry) -> bool) {
    heap.retain(|Reverse(entry)| is_live(entry));
    // A heap of few lanes keeps the capacity to which they make it grow again.
    heap.shrink_to((2 * heap.len()).max(SLACK) + SLACK);
}

#[cfg(test)]
mod tests;
