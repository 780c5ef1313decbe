//! The first keys in an order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::summary::Summary;
use super::{LaneView, Order};
use crate::LockKey;
use crate::lock::clock::Moment;
use crate::observe::Tally;

/// The first keys in an order.
#[derive(Debug)]
pub(super) struct First<'a> {
    pub(super) tally: &'a Tally,
    pub(super) order: Order,
    pub(super) limit: usize,
    pub(super) now: Moment,
    pub(super) heap: BinaryHeap<Reverse<Ranked>>,
}

impl First<'_> {
    pub(super) fn add(&mut self, key: &LockKey, summary: Summary) {
        let Some(rank) = self.order.rank(&summary, self.now) else {
            return;
        };
        // A key is read only when it enters.
        let last = self.heap.peek();
        if self.heap.len() >= self.limit && last.is_none_or(|Reverse(last)| last.rank >= rank) {
            return;
        }
        let view = summary.view(key, self.now, self.tally);
        self.heap.push(Reverse(Ranked { rank, view }));
        if self.heap.len() > self.limit {
            drop(self.heap.pop());
        }
    }

    pub(super) fn into_sorted(self) -> Vec<LaneView> {
        // `Reverse` sorts the least rank last.
        let sorted = self.heap.into_sorted_vec().into_iter();
        let mut seen = HashSet::new();
        // The lanes of permits may follow another lane of their key, and take the place of another key in this walk.
        let sorted = sorted.filter(|Reverse(ranked)| seen.insert(ranked.view.key.clone()));
        sorted.map(|Reverse(ranked)| ranked.view).collect()
    }
}

impl Order {
    /// Returns the place of a key among the others, or `None` if it does not belong to them.
    fn rank(self, summary: &Summary, now: Moment) -> Option<Rank> {
        match self {
            Self::Waiters if !summary.is_shown() => None,
            Self::Waiters => Some((summary.waiters, Reverse(summary.since().unwrap_or(now)), 0)),
            Self::Age => Some((0, Reverse(summary.since()?), summary.waiters)),
            Self::Remaining => Some((0, Reverse(summary.until()?), summary.waiters)),
        }
    }
}

/// An entry of the bounded heap: the greater rank comes first.
#[derive(Debug)]
pub(super) struct Ranked {
    rank: Rank,
    view: LaneView,
}

/// With equal numbers, the earlier moment is the greater rank.
type Rank = (usize, Reverse<Moment>, usize);

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}
