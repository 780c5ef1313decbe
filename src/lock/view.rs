//! What an operator sees of the lanes. State is read, never rebuilt from events.

use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::Notify;

use self::first::First;
use self::summary::Summary;
use super::clock::Moment;
use super::counts::{Counts, ShardCounts};
use super::engine::Engine;
use super::grant::Grant;
use super::hot::HotKey;
use super::lane::{HeldBy, Lane};
use super::manager::LockManager;
use super::table::{Part, Place, SHARDS};
use crate::backend::Mode;
use crate::key::KeyMap;
use crate::{FencingToken, LockKey, Owner};

mod first;
mod summary;

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
    /// The holds of this process, or `None` while only waiters are here.
    pub(crate) hold: Option<HoldView>,
    /// The layer name of the oldest hold.
    pub(crate) layer: Option<SmolStr>,
    pub(crate) held_by: HeldBy,
    pub(crate) waiters: usize,
}

/// The holds of the owners of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldView {
    pub(crate) mode: Mode,
    pub(crate) owners: usize,
    /// The time since the first grant.
    pub(crate) since: Duration,
    /// The time until the first of their leases ends if no renewal succeeds.
    pub(crate) left: Duration,
    pub(crate) holds: u32,
    /// `None` if their tokens differ.
    pub(crate) token: Option<FencingToken>,
}

impl LaneView {
    /// Returns `true` if further owners may hold the key in its mode.
    pub(crate) fn may_have_several_owners(&self) -> bool {
        (self.hold).is_some_and(|hold| hold.mode != Mode::Exclusive)
    }
}

/// The hold of one owner of this process.
#[derive(Debug, Clone)]
pub(crate) struct OwnerView {
    pub(crate) owner: Owner,
    pub(crate) layer: Option<SmolStr>,
    pub(crate) since: Duration,
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

    /// Reads the lanes of one key.
    pub(crate) fn lane(&self, key: &LockKey) -> Option<LaneView> {
        let engine = self.engine();
        let mut summary = engine.lanes.inspect(key, Summary::of).unwrap_or_default();
        if engine.has_permits() {
            let lanes = &engine.lanes;
            summary = lanes.fold_permits(key, summary, |all, _, lane| {
                *all = all.and(Summary::of(lane));
            });
        }
        let is_known = summary.is_shown() || summary.is_returning;
        is_known.then(|| summary.view(key, Moment::now(), &engine.tally))
    }

    /// Returns the owners of this process that hold a key, the oldest `limit` first.
    pub(crate) fn owners(&self, key: &LockKey, limit: usize) -> Vec<OwnerView> {
        let engine = self.engine();
        let add = |grants: &mut Vec<_>, lane: &Lane| grants.extend(lane.holders().map(Arc::clone));
        let mut grants = Vec::new();
        engine.lanes.inspect(key, |lane| add(&mut grants, lane));
        if engine.has_permits() {
            let lanes = &engine.lanes;
            grants = lanes.fold_permits(key, grants, |grants, _, lane| add(grants, lane));
        }
        grants.sort_by_key(|grant| grant.granted_at());
        let now = Moment::now();
        let view = |grant: Arc<Grant>| OwnerView {
            owner: grant.owner(),
            layer: engine.tally.text(grant.name()).map(SmolStr::new),
            since: now.since(grant.granted_at()),
            left: grant.valid_until().since(now),
            holds: grant.holds(),
            token: grant.token(),
        };
        grants.into_iter().take(limit).map(view).collect()
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
            let (mut read, mut permits) = (ShardCounts::default(), KeyMap::<Summary>::default());
            let mut place = Some(Place::start_of(shard));
            while let Some(at) = place {
                pauses.pause().await;
                let part = engine.lanes.inspect_part(at, |key, lane| {
                    if lane.is_return_over(first.now) {
                        expired.push(key.clone());
                    }
                    read.add(key, lane);
                    read.add_times(lane, first.now);
                    let summary = Summary::of(lane);
                    if key.is_of_permit() {
                        let permits = permits.entry(key.stored().clone()).or_default();
                        *permits = permits.and(summary);
                    } else {
                        first.add(key, summary);
                    }
                });
                place = match part {
                    Part::Read(next) => next,
                    Part::Moved => {
                        (read, permits) = Default::default();
                        Some(Place::start_of(shard))
                    }
                };
            }
            for (key, permits) in permits {
                let others = engine.lanes.inspect(&key, Summary::of).unwrap_or_default();
                // Alone, they came later in the order.
                first.add(&key, permits.and(others));
            }
            counts = counts.plus(read.finish(&engine.lanes));
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
            let (mut hashes, mut permits) = (Vec::new(), KeyMap::<Summary>::default());
            let mut place = Some(Place::start_of(shard));
            while let Some(at) = place {
                pauses.pause().await;
                let read = lanes.inspect_part(at, |key, lane| {
                    if !is_next(key.stored()) || !lane.is_shown() {
                        return;
                    }
                    hashes.push(key.stored().hash_code());
                    if key.is_of_permit() {
                        let permits = permits.entry(key.stored().clone()).or_default();
                        *permits = permits.and(Summary::of(lane));
                    }
                });
                place = match read {
                    Part::Read(next) => next,
                    Part::Moved => {
                        hashes.clear();
                        permits.clear();
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
            let mut add = |key: &LockKey, summary: Summary| {
                if summary.is_shown() {
                    page.rows.push(summary.view(key, now, &engine.tally));
                }
            };
            for hash in &hashes {
                lanes.inspect_hash(*hash, |key, lane| {
                    if !key.is_of_permit() {
                        let permits = permits.remove(key).unwrap_or_default();
                        add(key, permits.and(Summary::of(lane)));
                    }
                });
            }
            // No lane of another mode has their keys.
            let is_read = |key: &LockKey| hashes.binary_search(&key.hash_code()).is_ok();
            for (key, summary) in permits.iter().filter(|(key, _)| is_read(key)) {
                add(key, *summary);
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

#[cfg(test)]
mod tests;
