//! What can be seen of the engine from outside.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Moment;
use super::engine::Engine;
use super::lane::Lane;
use crate::LockKey;
use crate::backend::Holder;

/// What one manager holds and waits for at a moment. A view for metrics and tests: by the time it
/// is read it may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Keys that somebody in this process holds.
    pub held: usize,
    /// Acquires that wait in a queue.
    pub waiting: usize,
    /// Keys that this process knows of: held, waited for, or on their way back to the backend.
    pub lanes: usize,
    /// Releases that the backend has not confirmed yet.
    pub unreleased: usize,
}

impl Snapshot {
    pub(super) fn of(engine: &Arc<Engine>) -> Self {
        engine.forget_expired();
        let mut snapshot = Self::default();
        let mut returning = 0;
        engine.lanes.inspect_each(|lane| {
            snapshot.lanes += 1;
            snapshot.held += usize::from(lane.holder().is_some());
            snapshot.waiting += lane.waiters();
            returning += usize::from(lane.is_returning());
        });
        snapshot.unreleased = returning + engine.unresolved();
        snapshot
    }

    /// Whether nothing is held, waited for, or still to be given back.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

/// Who holds a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The owner: of this manager the [`Owner`](crate::Owner) as text, otherwise what the other
    /// process wrote into the backend, `<uuid>:<number>`.
    pub owner: String,
    /// What is left of the lease in the backend.
    pub ttl: Duration,
    /// How many times the owner holds it. Other processes that use this crate always show 1.
    pub hold_count: u64,
    /// How many wait for it in this process.
    pub waiters: usize,
}

impl LockInfo {
    pub(super) fn new(holder: Holder, lane: &Lane) -> Self {
        let waiters = lane.waiters();
        let now = Moment::now();
        match lane.holder().filter(|grant| grant.is_held(now)) {
            Some(grant) => Self {
                owner: grant.owner().to_string(),
                ttl: holder.ttl,
                hold_count: grant.holds().into(),
                waiters,
            },
            None => Self {
                owner: holder.id,
                ttl: holder.ttl,
                hold_count: holder.hold_count,
                waiters,
            },
        }
    }

    pub(super) fn of(engine: &Arc<Engine>, key: &LockKey, holder: Holder) -> Self {
        engine.event(key, |lane, _| Self::new(holder, lane))
    }
}
