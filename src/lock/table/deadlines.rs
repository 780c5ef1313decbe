//! The ordered index of deadlines: when the watchdog has to check which lane.
//!
//! Each shard of the lane table has one index, under its mutex. A lock held briefly costs one push. Its entry outlives its
//! lane, and is dropped when its time comes or when stale entries outnumber the live ones.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::lock::clock::Moment;

/// The number of stale entries that are always tolerated. Few, so that the indexes of all shards remain in the caches.
const SLACK: usize = 8;

type Heap = BinaryHeap<Reverse<Entry>>;

/// When to check the lanes whose keys have this hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) at: Moment,
    pub(crate) hash: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Deadlines(Heap);

impl Deadlines {
    /// Adds an entry. Returns `true` if it is the earliest, of which the watchdog must be notified.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) -> bool {
        let is_first = self.first().is_none_or(|first| entry.at < first.at);
        self.0.push(Reverse(entry));
        is_first
    }

    pub(crate) fn first(&self) -> Option<Entry> {
        self.0.peek().map(|Reverse(entry)| *entry)
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        self.0.pop().map(|Reverse(entry)| entry)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops stale entries once they outnumber the lanes.
    #[inline]
    pub(crate) fn drop_stale(&mut self, lanes: usize, is_live: impl Fn(&Entry) -> bool) {
        if self.0.len() > 2 * lanes + SLACK {
            retain(&mut self.0, is_live);
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
