//! What an operator sees of the lanes. State is read, never rebuilt from events.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::Notify;

use super::clock::Moment;
use super::engine::Engine;
use super::hot::HotKey;
use super::lane::{HeldBy, Lane};
use super::manager::LockManager;
use super::table::{Part, Place, SHARDS};
use crate::observe::Tally;
use crate::{FencingToken, LockKey};

/// The number of parts of shards that a walk reads before other tasks run.
const AT_ONCE: usize = 8;

/// Above this number of lanes, a walk reads only every fourth shard. Unit tests reach a smaller one.
const SAMPLED_ABOVE: usize = if cfg!(test) { 1_000 } else { 1_000_000 };
const SAMPLED_PART: usize = 4;

/// The settings of a manager.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) wait: Duration,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) max_waiters_per_key: usize,
    pub(crate) max_waiters: usize,
}

/// One key that is held or waited for in this process.
#[derive(Debug, Clone)]
pub(crate) struct LaneView {
    pub(crate) key: LockKey,
    /// The hold of this process, or `None` while only waiters are here.
    pub(crate) hold: Option<HoldView>,
    /// The layer name of the hold.
    pub(crate) layer: Option<SmolStr>,
    pub(crate) held_by: HeldBy,
    pub(crate) waiters: usize,
}

/// The hold of one owner of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldView {
    /// The time since the grant.
    pub(crate) since: Duration,
    /// The time until the lease ends if no renewal succeeds.
    pub(crate) left: Duration,
    pub(crate) holds: u32,
    pub(crate) token: FencingToken,
}

/// Which keys come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The most waiters, and of equal ones the oldest hold.
    Waiters,
    /// The oldest hold.
    Age,
    /// The hold whose lease ends next.
    Remaining,
}

/// The result of one walk.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    pub(crate) counts: Counts,
    /// The numbers are estimates from a part of the lanes.
    pub(crate) sampled: bool,
    /// The first keys in their order.
    pub(crate) top: Vec<LaneView>,
}

/// The totals of one walk.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) lanes: usize,
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    pub(crate) queued: usize,
    pub(crate) unreleased: usize,
    /// The lanes that a table of keys can show: those that are held or waited for.
    pub(crate) shown: usize,
    pub(crate) oldest_hold: Option<Duration>,
    pub(crate) oldest_wait: Option<Duration>,
}

/// Keys in the order of their hashes, which no client can choose.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) rows: Vec<LaneView>,
    /// Where the next page begins, or `None` after the last one.
    pub(crate) next: Option<(usize, u64)>,
}

/// A handle that does not keep its manager.
#[derive(Debug, Clone)]
pub(crate) struct WeakManager {
    engine: Weak<Engine>,
    closed: Arc<Notify>,
}

/// An entry of the bounded heap: the greater rank comes first.
#[derive(Debug)]
struct Ranked {
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

impl LockManager {
    pub(crate) fn settings(&self) -> Settings {
        let options = &self.engine().options;
        Settings {
            wait: options.wait,
            watchdog_timeout: options.watchdog_timeout,
            max_waiters_per_key: options.max_waiters_per_key,
            max_waiters: options.max_waiters,
        }
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.engine().is_closing()
    }

    /// Reads one lane.
    pub(crate) fn lane(&self, key: &LockKey) -> Option<LaneView> {
        let now = Moment::now();
        let engine = self.engine();
        engine.event(key, |lane, _| {
            let is_known = is_shown(lane) || lane.is_returning();
            is_known.then(|| view(key, lane, now, &engine.tally))
        })
    }

    /// Reads all lanes, and returns the first `limit` keys in `order`.
    ///
    /// The mutex of a shard is locked for a part of it at a time, and other tasks run after every eighth part, so a
    /// walk delays no request. `turn` selects the shards that are read if there are too many lanes.
    pub(crate) async fn walk(&self, order: Order, limit: usize, turn: usize) -> Walk {
        let engine = self.engine();
        let sampled = engine.lanes.len() > SAMPLED_ABOVE;
        let part = if sampled { SAMPLED_PART } else { 1 };
        let mut first = First {
            tally: &engine.tally,
            order,
            limit,
            // One moment for all keys, or the order of equal ages would change with each walk.
            now: Moment::now(),
            heap: BinaryHeap::with_capacity(limit.saturating_add(1)),
        };
        let (mut counts, mut expired) = (Counts::default(), Vec::new());
        let mut pauses = Pauses::default();
        for shard in (turn % part..SHARDS).step_by(part) {
            let before = counts;
            let mut place = Some(Place::start_of(shard));
            while let Some(at) = place {
                pauses.pause().await;
                let read = engine.lanes.inspect_part(at, |key, lane| {
                    if lane.is_return_over(first.now) {
                        expired.push(key.clone());
                    }
                    counts.add(lane, first.now);
                    first.add(key, lane);
                });
                place = match read {
                    Part::Read(next) => next,
                    Part::Moved => {
                        counts = before;
                        Some(Place::start_of(shard))
                    }
                };
            }
        }
        engine.forget(&expired, first.now);
        counts.multiply(part);
        counts.unreleased += engine.unresolved();
        Walk {
            counts,
            sampled,
            top: first.into_sorted(),
        }
    }

    /// Reads up to `limit` keys after `after`: a shard, and the hash of its last key that was read.
    pub(crate) async fn page(&self, after: (usize, Option<u64>), limit: usize) -> Page {
        let engine = self.engine();
        let lanes = &engine.lanes;
        let (start, mut after) = after;
        let mut page = Page::default();
        let mut pauses = Pauses::default();
        for shard in start..SHARDS {
            let after = std::mem::take(&mut after);
            let is_next = |key: &LockKey| after.is_none_or(|after| key.hash_code() > after);
            let mut hashes = Vec::new();
            let mut place = Some(Place::start_of(shard));
            while let Some(at) = place {
                pauses.pause().await;
                let read = lanes.inspect_part(at, |key, lane| {
                    if is_next(key) && is_shown(lane) {
                        hashes.push(key.hash_code());
                    }
                });
                place = match read {
                    Part::Read(next) => next,
                    Part::Moved => {
                        hashes.clear();
                        Some(Place::start_of(shard))
                    }
                };
            }
            hashes.sort_unstable();
            hashes.dedup();
            let room = limit - page.rows.len();
            let is_full = hashes.len() >= room;
            hashes.truncate(room);
            let now = Moment::now();
            for hash in &hashes {
                lanes.inspect_hash(*hash, |key, lane| {
                    if is_shown(lane) {
                        page.rows.push(view(key, lane, now, &engine.tally));
                    }
                });
            }
            // A key that left between the two looks leaves the page shorter.
            if is_full {
                page.next = hashes.last().map(|last| (shard, *last));
                break;
            }
        }
        page
    }

    /// Counts the keys of acquires that wait, from now on.
    pub(crate) fn count_hot_keys(&self) {
        self.engine().hot.enable();
    }

    /// Returns the keys whose acquires waited most often, and the number of waits that were not counted.
    pub(crate) fn hot_keys(&self, limit: usize) -> (Vec<HotKey>, u64) {
        self.engine().hot.top(limit)
    }

    /// Halves the counts of the hot keys.
    pub(crate) fn halve_hot_keys(&self) {
        self.engine().hot.halve();
    }

    /// Returns a handle that does not keep the manager.
    pub(crate) fn downgrade(&self) -> WeakManager {
        WeakManager {
            engine: Arc::downgrade(self.engine()),
            closed: self.engine().closed(),
        }
    }
}

impl WeakManager {
    pub(crate) fn upgrade(&self) -> Option<LockManager> {
        self.engine.upgrade().map(LockManager::of)
    }

    /// Returns what is notified when the manager begins to shut down.
    pub(crate) fn closed(&self) -> &Notify {
        &self.closed
    }
}

/// Lets other tasks run after a number of parts.
#[derive(Debug, Default)]
struct Pauses {
    read: usize,
}

impl Pauses {
    /// Precedes each part.
    async fn pause(&mut self) {
        self.read += 1;
        if self.read.is_multiple_of(AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
}

impl Counts {
    fn add(&mut self, lane: &Lane, now: Moment) {
        self.lanes += usize::from(!lane.is_yielding());
        self.waiting += lane.waiters();
        self.queued += usize::from(lane.has_place());
        self.unreleased += usize::from(lane.is_returning());
        self.shown += usize::from(is_shown(lane));
        // Mostly the first waiter waits longest, and a queue can be long.
        let waited = lane.claims().next().map(|claim| now.since(claim.since));
        self.oldest_wait = self.oldest_wait.max(waited);
        if let Some(grant) = lane.holder() {
            self.held += 1;
            self.oldest_hold = self.oldest_hold.max(Some(now.since(grant.granted_at())));
        }
    }

    /// Estimates the numbers of all lanes from those of one in `part`.
    fn multiply(&mut self, part: usize) {
        let Self {
            lanes,
            held,
            waiting,
            queued,
            unreleased,
            shown,
            ..
        } = self;
        for count in [lanes, held, waiting, queued, unreleased, shown] {
            *count *= part;
        }
    }
}

/// The first keys in an order.
#[derive(Debug)]
struct First<'a> {
    tally: &'a Tally,
    order: Order,
    limit: usize,
    now: Moment,
    heap: BinaryHeap<Reverse<Ranked>>,
}

impl First<'_> {
    fn add(&mut self, key: &LockKey, lane: &Lane) {
        let Some(rank) = self.order.rank(lane, self.now) else {
            return;
        };
        // A key is read only when it enters.
        let last = self.heap.peek();
        if self.heap.len() >= self.limit && last.is_none_or(|Reverse(last)| last.rank >= rank) {
            return;
        }
        let view = view(key, lane, self.now, self.tally);
        self.heap.push(Reverse(Ranked { rank, view }));
        if self.heap.len() > self.limit {
            drop(self.heap.pop());
        }
    }

    fn into_sorted(self) -> Vec<LaneView> {
        // `Reverse` sorts the least rank last.
        let sorted = self.heap.into_sorted_vec().into_iter();
        let mut seen = HashSet::new();
        // A shard that was read again shows keys twice. Each of them takes the place of another key in this walk.
        let sorted = sorted.filter(|Reverse(ranked)| seen.insert(ranked.view.key.clone()));
        sorted.map(|Reverse(ranked)| ranked.view).collect()
    }
}

impl Order {
    /// Returns the place of a key among the others, or `None` if it does not belong to them.
    fn rank(self, lane: &Lane, now: Moment) -> Option<Rank> {
        let (holder, waiters) = (lane.holder(), lane.waiters());
        match self {
            Self::Waiters if !is_shown(lane) => None,
            Self::Waiters => {
                let since = holder.map_or(now, |grant| grant.granted_at());
                Some((waiters, Reverse(since), 0))
            }
            Self::Age => Some((0, Reverse(holder?.granted_at()), waiters)),
            Self::Remaining => Some((0, Reverse(holder?.valid_until()), waiters)),
        }
    }
}

fn hold(lane: &Lane, now: Moment) -> Option<HoldView> {
    lane.holder().map(|grant| HoldView {
        since: now.since(grant.granted_at()),
        left: grant.valid_until().since(now),
        holds: grant.holds(),
        token: grant.token(),
    })
}

fn is_shown(lane: &Lane) -> bool {
    lane.holder().is_some() || lane.waiters() > 0
}

fn view(key: &LockKey, lane: &Lane, now: Moment, tally: &Tally) -> LaneView {
    let layer = lane.holder().and_then(|grant| tally.text(grant.name()));
    LaneView {
        key: key.clone(),
        hold: hold(lane, now),
        layer: layer.map(SmolStr::new),
        held_by: lane.held_by(),
        waiters: lane.waiters(),
    }
}

#[cfg(test)]
mod tests;
