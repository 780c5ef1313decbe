//! What an operator sees of the lanes. State is read, never rebuilt from events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::clock::Moment;
use super::engine::Engine;
use super::hot::HotKey;
use super::lane::{HeldBy, Lane};
use super::manager::LockManager;
use super::table::SHARDS;
use crate::{FencingToken, LockKey};

/// The number of shards that a walk reads before other tasks run.
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
    pub(crate) lanes: usize,
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    pub(crate) oldest_hold: Option<Duration>,
    pub(crate) oldest_wait: Option<Duration>,
    /// The numbers are estimates from a part of the lanes.
    pub(crate) sampled: bool,
    /// The first keys in their order.
    pub(crate) top: Vec<LaneView>,
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
    rank: (u128, u128),
    view: LaneView,
}

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
        self.engine().event(key, |lane, _| {
            let is_known = is_shown(lane) || lane.is_returning();
            is_known.then(|| view(key, lane, now))
        })
    }

    /// Reads all lanes, and returns the first `limit` keys in `order`.
    ///
    /// Other tasks run after every eighth shard, so a walk delays no request by more than a part of it. `turn`
    /// selects the part of the lanes that is read if there are too many.
    pub(crate) async fn walk(&self, order: Order, limit: usize, turn: usize) -> Walk {
        let engine = self.engine();
        let sampled = engine.lanes.len() > SAMPLED_ABOVE;
        let part = if sampled { SAMPLED_PART } else { 1 };
        let mut walk = Walk {
            sampled,
            ..Walk::default()
        };
        let mut first = BinaryHeap::with_capacity(limit.saturating_add(1));
        // One moment for all keys, or the order of equal ages would change with each walk.
        let now = Moment::now();
        for (read, shard) in (turn % part..SHARDS).step_by(part).enumerate() {
            if read % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            engine.lanes.inspect_shard(shard, |key, lane| {
                walk.add(key, lane, order, limit, now, &mut first);
            });
        }
        for count in [&mut walk.lanes, &mut walk.held, &mut walk.waiting] {
            *count *= part;
        }
        // `Reverse` sorts the least rank last.
        let sorted = first.into_sorted_vec().into_iter();
        walk.top = sorted.map(|Reverse(ranked)| ranked.view).collect();
        walk
    }

    /// Reads up to `limit` keys after `after`: a shard, and the hash of its last key that was read.
    pub(crate) async fn page(&self, after: (usize, Option<u64>), limit: usize) -> Page {
        let lanes = &self.engine().lanes;
        let (start, mut after) = after;
        let mut page = Page::default();
        for shard in start..SHARDS {
            if shard % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            let is_next = |key: &LockKey| after.is_none_or(|after| key.hash_code() > after);
            let mut hashes = Vec::new();
            lanes.inspect_shard(shard, |key, lane| {
                if is_next(key) && is_shown(lane) {
                    hashes.push(key.hash_code());
                }
            });
            hashes.sort_unstable();
            hashes.truncate(limit - page.rows.len());
            let Some(&last) = hashes.last() else {
                after = None;
                continue;
            };
            let now = Moment::now();
            lanes.inspect_shard(shard, |key, lane| {
                let is_in_page = is_next(key) && key.hash_code() <= last && is_shown(lane);
                if is_in_page && page.rows.len() < limit {
                    page.rows.push(view(key, lane, now));
                }
            });
            if page.rows.len() >= limit {
                page.next = Some((shard, last));
                break;
            }
            after = None;
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

impl Walk {
    fn add(
        &mut self,
        key: &LockKey,
        lane: &Lane,
        order: Order,
        limit: usize,
        now: Moment,
        first: &mut BinaryHeap<Reverse<Ranked>>,
    ) {
        self.lanes += usize::from(!lane.is_yielding());
        let waiters = lane.waiters();
        self.waiting += waiters;
        // Mostly the first waiter waits longest, and a queue can be long.
        let waited = lane.claims().next().map(|claim| now.since(claim.since));
        self.oldest_wait = self.oldest_wait.max(waited);
        let hold = hold(lane, now);
        if let Some(hold) = &hold {
            self.held += 1;
            self.oldest_hold = self.oldest_hold.max(Some(hold.since));
        }
        let Some(rank) = order.rank(hold.as_ref(), waiters) else {
            return;
        };
        // Keys are cloned only when they enter.
        if first.len() >= limit && first.peek().is_none_or(|Reverse(last)| last.rank >= rank) {
            return;
        }
        let view = LaneView {
            key: key.clone(),
            hold,
            held_by: lane.held_by(),
            waiters,
        };
        first.push(Reverse(Ranked { rank, view }));
        if first.len() > limit {
            drop(first.pop());
        }
    }
}

impl Order {
    /// Returns the place of a key among the others, or `None` if it does not belong to them.
    fn rank(self, hold: Option<&HoldView>, waiters: usize) -> Option<(u128, u128)> {
        let age = hold.map(|hold| hold.since.as_nanos());
        let by_waiters = waiters as u128;
        match self {
            Self::Waiters if hold.is_none() && waiters == 0 => None,
            Self::Waiters => Some((by_waiters, age.unwrap_or(0))),
            Self::Age => Some((age?, by_waiters)),
            Self::Remaining => Some((u128::MAX - hold?.left.as_nanos(), by_waiters)),
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

fn view(key: &LockKey, lane: &Lane, now: Moment) -> LaneView {
    LaneView {
        key: key.clone(),
        hold: hold(lane, now),
        held_by: lane.held_by(),
        waiters: lane.waiters(),
    }
}
