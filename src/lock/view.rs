//! What an operator sees of the lanes. State is read, never rebuilt from events.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::Notify;

use self::first::First;
use self::summary::Summary;
use super::engine::Engine;
use super::table::SHARDS;
use crate::backend::Mode;
use crate::key::KeyMap;
use crate::lock::api::manager::LockManager;
use crate::lock::engine::options::Options;
use crate::lock::lane::Lane;
use crate::lock::lease::Grant;
use crate::lock::table::counts::{Counting, Counts};
use crate::lock::table::hot::HotKeys;
use crate::{FencingToken, LockKey, Owner};

mod first;
mod summary;

/// One key that is held or waited for in this process.
#[derive(Debug, Clone)]
pub(crate) struct LaneView {
    pub(crate) key: LockKey,
    /// The layer name of the oldest hold.
    pub(crate) layer: Option<SmolStr>,
    pub(crate) lanes: Summary,
}

impl LaneView {
    /// Returns `true` if further owners may hold the key in its mode.
    pub(crate) fn may_have_several_owners(&self) -> bool {
        (self.lanes.hold).is_some_and(|hold| hold.mode != Mode::Exclusive)
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
    pub(crate) fn options(&self) -> &Options {
        &self.engine().options
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.engine().is_closing()
    }

    /// Reads the lanes of one key.
    pub(crate) fn lane(&self, key: &LockKey) -> Option<LaneView> {
        let engine = self.engine();
        let (mut summary, now) = (Summary::default(), engine.now());
        engine.inspect(key, |_, lane| {
            summary = summary.and(Summary::of(lane, now));
        });
        let is_known = summary.is_shown() || summary.is_returning;
        is_known.then(|| summary.view(key, &engine.tally))
    }

    /// Returns the owners of this process that hold a key, the oldest `limit` first.
    pub(crate) fn owners(&self, key: &LockKey, limit: usize) -> Vec<OwnerView> {
        let engine = self.engine();
        let mut grants = Vec::new();
        engine.inspect(key, |_, lane| grants.extend(lane.holders().map(Arc::clone)));
        grants.sort_by_key(|grant| grant.granted_at);
        let now = engine.now();
        let view = |grant: Arc<Grant>| OwnerView {
            owner: grant.owner(),
            layer: engine.tally.text(grant.name).map(SmolStr::new),
            since: now.since(grant.granted_at),
            left: grant.valid_until().since(now),
            holds: grant.holds(),
            token: grant.token(),
        };
        grants.into_iter().take(limit).map(view).collect()
    }

    /// Reads all lanes, and returns the first `limit` keys in `order`.
    ///
    /// Other tasks run after each part of a shard. A lane that its table moves in between may be counted twice or
    /// missed.
    pub(crate) async fn walk(&self, order: Order, limit: usize) -> Walk {
        let engine = self.engine();
        // One moment for all keys, or the order of equal ages would change with each walk.
        let now = engine.now();
        let mut first = First {
            tally: &engine.tally,
            order,
            limit,
            top: BTreeMap::new(),
            added: 0,
        };
        let mut counting = Counting::at(now);
        let mut permits = KeyMap::<Summary>::default();
        let mut check = |key: &LockKey, lane: &Lane| {
            counting.add(key, lane);
            counting.add_times(lane);
            let summary = Summary::of(lane, now);
            if key.is_of_permit() {
                let permits = permits.entry(key.stored().clone()).or_default();
                *permits = permits.and(summary);
            } else {
                first.add(key, summary);
            }
        };
        for shard in 0..SHARDS {
            let mut part = Some(0);
            while let Some(start) = part {
                part = engine.lanes.inspect_part(shard, start, &mut check);
                tokio::task::yield_now().await;
            }
        }
        for (key, permits) in permits {
            let others = |lane: &Lane| Summary::of(lane, now);
            let others = engine.lanes.inspect(&key, others).unwrap_or_default();
            // Alone, they came later in the order.
            first.add(&key, permits.and(others));
        }
        let mut counts = counting.finish(&engine.lanes);
        counts.snapshot.unreleased += engine.unconfirmed();
        Walk {
            counts,
            top: first.into_sorted(),
        }
    }

    /// Reads up to `limit` keys after `after`: a shard, and the hash of its last key that was read.
    pub(crate) async fn page(&self, after: (usize, Option<u64>), limit: usize) -> Page {
        let engine = self.engine();
        let (lanes, now) = (&engine.lanes, engine.now());
        let (start, mut after) = after;
        let mut page = Page::default();
        for shard in start..SHARDS {
            let after = std::mem::take(&mut after);
            let mut found = KeyMap::<Summary>::default();
            lanes.inspect_shard(shard, |key, lane| {
                let key = key.stored();
                if after.is_none_or(|after| key.hash_code() > after) {
                    let summary = found.entry(key.clone()).or_default();
                    *summary = summary.and(Summary::of(lane, now));
                }
            });
            tokio::task::yield_now().await;
            let found = found.into_iter().filter(|(_, it)| it.is_shown());
            let mut found: Vec<_> = found.collect();
            found.sort_unstable_by_key(|(key, _)| key.hash_code());
            let budget = limit - page.rows.len();
            let is_full = found.len() >= budget;
            found.truncate(budget);
            let views = found.iter().map(|(key, it)| it.view(key, &engine.tally));
            page.rows.extend(views);
            if is_full {
                page.next = found.last().map(|(key, _)| (shard, key.hash_code()));
                break;
            }
        }
        page
    }

    /// Returns the keys whose acquires wait most often.
    pub(crate) fn hot_keys(&self) -> &HotKeys {
        &self.engine().hot
    }

    /// Returns a handle that does not keep the manager.
    pub(crate) fn downgrade(&self) -> WeakManager {
        WeakManager {
            engine: Arc::downgrade(self.engine()),
            closed: Arc::clone(&self.engine().closed),
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

#[cfg(test)]
mod tests;
