//! The numbers of the lanes of one manager. All lanes of one key count as one.

#[cfg(feature = "dashboard")]
use std::time::Duration;

use super::Lanes;
use crate::LockKey;
use crate::backend::Mode;
use crate::key::KeyMap;
use crate::lock::clock::Moment;
use crate::lock::lane::Lane;

/// The numbers of locks and waiters of one manager, for metrics and tests. Possibly outdated when it
/// is read.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::Error> {
/// use tower_lock::LockManager;
///
/// let locks = LockManager::in_memory();
/// let guard = locks.acquire("order:42").await?;
/// assert_eq!(locks.snapshot().held, 1);
/// guard.release().await?;
/// assert!(locks.snapshot().is_idle());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Keys that are held in this process, in any mode.
    pub held: usize,
    /// Owners of this process that hold a key [exclusively](Mode::Exclusive). An owner counts once for each key.
    pub exclusive: usize,
    /// Owners of this process that hold a key [shared](Mode::Shared).
    pub shared: usize,
    /// Owners of this process that hold a [permit](Mode::Permit) of a key.
    pub permits: usize,
    /// Acquires that wait in a queue.
    pub waiting: usize,
    /// Keys for which this process is in the queue of the backend, across processes.
    pub queued: usize,
    /// Releases that the backend has not confirmed yet.
    pub unreleased: usize,
    /// Keys whose leases this process [keeps](crate::LockManagerBuilder::keep_released) for the next acquire, without an
    /// owner.
    pub kept: usize,
    /// Keys that are held, waited for or being released in this process.
    pub(crate) lanes: usize,
}

impl Snapshot {
    /// Returns `true` if no lock is held, waited for, kept or being released.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

/// The totals of lanes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) snapshot: Snapshot,
    /// The keys that a table of keys can show: those that are held or waited for.
    pub(crate) shown: usize,
    #[cfg(feature = "dashboard")]
    pub(crate) oldest_hold: Option<Duration>,
    #[cfg(feature = "dashboard")]
    pub(crate) oldest_wait: Option<Duration>,
}

/// The totals of the lanes that were read so far.
#[derive(Debug)]
pub(crate) struct Counting {
    now: Moment,
    counts: Counts,
    /// The keys of the permits.
    permits: KeyMap<Once>,
}

/// What counts once for a key: whether it has a lane, is held, is in the queue of the backend, and is shown.
type Once = [bool; 4];

fn once(lane: &Lane, now: Moment) -> Once {
    [
        !lane.is_yielding() && (!lane.is_returning() || lane.may_have_lease(now)),
        lane.is_held(),
        lane.has_place(),
        lane.is_shown(),
    ]
}

impl Counting {
    /// Begins to count the lanes as they are at `now`.
    pub(crate) fn at(now: Moment) -> Self {
        Self {
            now,
            counts: Counts::default(),
            permits: KeyMap::default(),
        }
    }

    pub(crate) fn add(&mut self, key: &LockKey, lane: &Lane) {
        let counts = &mut self.counts.snapshot;
        counts.waiting += lane.waiters();
        counts.unreleased += usize::from(lane.is_unreleased(self.now));
        counts.kept += usize::from(lane.kept_lease().is_some());
        *match lane.mode() {
            Mode::Exclusive => &mut counts.exclusive,
            Mode::Shared => &mut counts.shared,
            Mode::Permit => &mut counts.permits,
        } += lane.holders().count();
        let once = once(lane, self.now);
        if key.is_of_permit() {
            let permits = self.permits.entry(key.stored().clone()).or_default();
            *permits = std::array::from_fn(|at| permits[at] | once[at]);
        } else {
            self.counts.add_key(once);
        }
    }

    #[cfg(feature = "dashboard")]
    pub(crate) fn add_times(&mut self, lane: &Lane) {
        let (now, counts) = (self.now, &mut self.counts);
        // Mostly the first waiter waits longest, and a queue can be long.
        let waited = lane.claims().next().map(|claim| now.since(claim.since));
        counts.oldest_wait = counts.oldest_wait.max(waited);
        let held = lane.holders().map(|grant| grant.granted_at).min();
        let held = held.map(|since| now.since(since));
        counts.oldest_hold = counts.oldest_hold.max(held);
    }

    /// Returns the totals after all lanes.
    pub(crate) fn finish(mut self, lanes: &Lanes) -> Counts {
        for (key, permits) in self.permits {
            // Acquires in other modes have a lane that was counted.
            let counted = lanes.inspect(&key, |lane| once(lane, self.now));
            let counted = counted.unwrap_or_default();
            let uncounted = std::array::from_fn(|at| permits[at] & !counted[at]);
            self.counts.add_key(uncounted);
        }
        self.counts
    }
}

impl Counts {
    /// Counts all lanes.
    pub(crate) fn of(lanes: &Lanes, now: Moment) -> Self {
        let mut counting = Counting::at(now);
        lanes.inspect_all(|key, lane| counting.add(key, lane));
        counting.finish(lanes)
    }

    fn add_key(&mut self, [has_lane, is_held, has_place, is_shown]: Once) {
        self.snapshot.lanes += usize::from(has_lane);
        self.snapshot.held += usize::from(is_held);
        self.snapshot.queued += usize::from(has_place);
        self.shown += usize::from(is_shown);
    }
}
