//! The numbers of the lanes of one manager. All lanes of one key count as one.

#[cfg(feature = "dashboard")]
use std::time::Duration;

use super::Lanes;
use crate::LockKey;
use crate::backend::Mode;
use crate::key::KeyMap;
use crate::lock::clock::Moment;
use crate::lock::lane::Lane;

/// The totals of lanes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) lanes: usize,
    pub(crate) held: usize,
    pub(crate) exclusive: usize,
    pub(crate) shared: usize,
    pub(crate) permits: usize,
    pub(crate) waiting: usize,
    pub(crate) queued: usize,
    pub(crate) unreleased: usize,
    /// The keys that a table of keys can show: those that are held or waited for.
    pub(crate) shown: usize,
    #[cfg(feature = "dashboard")]
    pub(crate) oldest_hold: Option<Duration>,
    #[cfg(feature = "dashboard")]
    pub(crate) oldest_wait: Option<Duration>,
}

/// The totals of the lanes that were read so far.
#[derive(Debug)]
pub(in crate::lock) struct Counting {
    now: Moment,
    counts: Counts,
    /// The keys of the permits.
    permits: KeyMap<Once>,
}

/// What counts once for a key: whether it has a lane, is held, is in the queue of the backend, and is shown.
type Once = [bool; 4];

fn once(lane: &Lane, now: Moment) -> Once {
    [
        !lane.is_yielding() && (!lane.is_returning() || lane.is_unreleased(now)),
        lane.is_held(),
        lane.has_place(),
        lane.is_shown(),
    ]
}

impl Counting {
    /// Begins to count the lanes as they are at `now`.
    pub(in crate::lock) fn at(now: Moment) -> Self {
        Self {
            now,
            counts: Counts::default(),
            permits: KeyMap::default(),
        }
    }

    pub(in crate::lock) fn add(&mut self, key: &LockKey, lane: &Lane) {
        let counts = &mut self.counts;
        counts.waiting += lane.waiters();
        counts.unreleased += usize::from(lane.is_unreleased(self.now));
        *match lane.mode() {
            Mode::Exclusive => &mut counts.exclusive,
            Mode::Shared => &mut counts.shared,
            Mode::Permit => &mut counts.permits,
        } += lane.owners();
        let once = once(lane, self.now);
        if key.is_of_permit() {
            let permits = self.permits.entry(key.stored().clone()).or_default();
            *permits = std::array::from_fn(|at| permits[at] | once[at]);
        } else {
            counts.add_key(once);
        }
    }

    #[cfg(feature = "dashboard")]
    pub(in crate::lock) fn add_times(&mut self, lane: &Lane) {
        let (now, counts) = (self.now, &mut self.counts);
        // Mostly the first waiter waits longest, and a queue can be long.
        let waited = lane.claims().next().map(|claim| now.since(claim.since));
        counts.oldest_wait = counts.oldest_wait.max(waited);
        let held = lane.holders().map(|grant| grant.granted_at()).min();
        let held = held.map(|since| now.since(since));
        counts.oldest_hold = counts.oldest_hold.max(held);
    }

    /// Returns the totals after all lanes.
    pub(in crate::lock) fn finish(self, lanes: &Lanes) -> Counts {
        let Self {
            now,
            mut counts,
            permits,
        } = self;
        for (key, permits) in permits {
            // Acquires in other modes have a lane that was counted.
            let counted = lanes
                .inspect(&key, |lane| once(lane, now))
                .unwrap_or_default();
            counts.add_key(std::array::from_fn(|at| permits[at] & !counted[at]));
        }
        counts
    }
}

impl Counts {
    /// Counts all lanes.
    pub(in crate::lock) fn of(lanes: &Lanes, now: Moment) -> Self {
        let mut counting = Counting::at(now);
        lanes.inspect_all(|key, lane| counting.add(key, lane));
        counting.finish(lanes)
    }

    fn add_key(&mut self, once: Once) {
        let Self {
            lanes,
            held,
            queued,
            shown,
            ..
        } = self;
        for (count, once) in [lanes, held, queued, shown].into_iter().zip(once) {
            *count += usize::from(once);
        }
    }
}
