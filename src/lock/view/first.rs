//! The first keys in an order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::summary::Summary;
use super::{LaneView, Order};
use crate::LockKey;
use crate::observe::Tally;

/// The first keys in an order.
#[derive(Debug)]
pub(super) struct First<'a> {
    pub(super) tally: &'a Tally,
    pub(super) order: Order,
    pub(super) limit: usize,
    /// The greatest rank comes first. Of equal ones, that of the key that was added first.
    pub(super) top: BTreeMap<(Rank, Reverse<usize>), LaneView>,
    pub(super) added: usize,
}

impl First<'_> {
    pub(super) fn add(&mut self, key: &LockKey, summary: Summary) {
        let Some(rank) = self.order.rank(&summary) else {
            return;
        };
        // A key is read only when it enters.
        let last = self.top.first_key_value();
        if self.top.len() >= self.limit && last.is_none_or(|((last, _), _)| *last >= rank) {
            return;
        }
        let view = summary.view(key, self.tally);
        self.added += 1;
        self.top.insert((rank, Reverse(self.added)), view);
        if self.top.len() > self.limit {
            self.top.pop_first();
        }
    }

    pub(super) fn into_sorted(self) -> Vec<LaneView> {
        let mut seen = HashSet::new();
        // The lanes of permits may follow another lane of their key, and take the place of another key in this walk.
        let sorted = self.top.into_values().rev();
        sorted
            .filter(|view| seen.insert(view.key.clone()))
            .collect()
    }
}

impl Order {
    /// Returns the place of a key among the others, or `None` if it does not belong to them.
    fn rank(self, summary: &Summary) -> Option<Rank> {
        let (hold, waiters) = (summary.hold, summary.waiters);
        match self {
            Self::Waiters if !summary.is_shown() => None,
            Self::Waiters => Some((waiters, hold.map_or(Duration::ZERO, |hold| hold.since), 0)),
            Self::Age => Some((0, hold?.since, waiters)),
            Self::Remaining => Some((0, Duration::MAX - hold?.left, waiters)),
        }
    }
}

/// With equal numbers, the longer time is the greater rank.
pub(super) type Rank = (usize, Duration, usize);
