//! The public view of the engine's state.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Moment;
use super::engine::Engine;
use super::lane::Lane;
use crate::LockKey;
use crate::backend::Holder;

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
    /// Keys that are held in this process.
    pub held: usize,
    /// Acquires that wait in a queue.
    pub waiting: usize,
    /// Keys for which this process is in the queue of the backend, across processes.
    pub queued: usize,
    /// Keys that are held, waited for or being released in this process.
    pub lanes: usize,
    /// Releases that the backend has not confirmed yet.
    pub unreleased: usize,
}

impl Snapshot {
    pub(super) fn of(engine: &Arc<Engine>) -> Self {
        engine.forget_expired();
        let mut snapshot = engine.lanes.fold(Self::default(), |snapshot, _, lane| {
            snapshot.lanes += usize::from(!lane.is_yielding());
            snapshot.queued += usize::from(lane.has_place());
            snapshot.held += usize::from(lane.holder().is_some());
            snapshot.waiting += lane.waiters();
            snapshot.unreleased += usize::from(lane.is_returning());
        });
        snapshot.unreleased += engine.unresolved();
        snapshot
    }

    /// Returns `true` if no lock is held, waited for or being released.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

/// The holder of a key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::Error> {
/// use tower_lock::LockManager;
///
/// let locks = LockManager::in_memory();
/// let guard = locks.acquire("order:42").await?;
/// let info = locks.inspect("order:42").await?.expect("the lock is held");
/// assert_eq!(info.owner, guard.owner().to_string());
/// assert_eq!((info.hold_count, info.waiters), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The owner. For a holder of this manager, the [`Owner`](crate::Owner) as text; for another process,
    /// the id that it wrote into the backend, `<uuid>:<number>`.
    pub owner: String,
    /// The remaining TTL of the lease in the backend.
    pub ttl: Duration,
    /// The number of the owner's holds. Always 1 for other processes that use this crate.
    pub hold_count: u64,
    /// The number of waiters in this process.
    pub waiters: usize,
    /// The number of processes in the queue of the backend, or 0 if it has no queue. Each has one place for all
    /// of its waiters.
    pub queued: u32,
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
                queued: holder.queued,
            },
            None => Self {
                owner: holder.id,
                ttl: holder.ttl,
                hold_count: holder.hold_count,
                waiters,
                queued: holder.queued,
            },
        }
    }

    pub(super) fn of(engine: &Arc<Engine>, key: &LockKey, holder: Holder) -> Self {
        engine.event(key, |lane, _| Self::new(holder, lane))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::sleep;

    use super::*;
    use crate::LockManager;
    use crate::backend::Memory;
    use crate::lock::tests::{MS, SECOND, Slow};

    #[tokio::test]
    async fn snapshot_counts_holders_and_waiters() {
        let locks = LockManager::in_memory();
        let (a, b) = (locks.acquire("a").await, locks.acquire("b").await);
        let mut waiter = pin!(locks.acquire("a").into_future());
        assert!(futures_util::poll!(&mut waiter).is_pending());
        let expected = Snapshot {
            held: 2,
            waiting: 1,
            queued: 0,
            lanes: 2,
            unreleased: 0,
        };
        assert_eq!(locks.snapshot(), expected);
        drop((a, b));
    }

    #[tokio::test(start_paused = true)]
    async fn snapshot_counts_places_in_backend_queue() {
        let store = Memory::new();
        let manager = || {
            LockManager::builder(store.clone())
                .build()
                .expect("defaults")
        };
        let (holder, other) = (manager(), manager());
        let held = [holder.acquire("a").await, holder.acquire("b").await];
        let mut waiters = ["a", "b"].map(|key| Box::pin(other.acquire(key).into_future()));
        for waiter in &mut waiters {
            assert!(futures_util::poll!(waiter).is_pending());
        }
        sleep(100 * MS).await;
        assert_eq!((other.snapshot().queued, holder.snapshot().queued), (2, 0));
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn release_is_unfinished_until_confirmed() {
        let backend = Slow {
            release_takes: SECOND,
            ..Slow::default()
        };
        let locks = LockManager::builder(backend).build().expect("defaults");
        assert!(locks.snapshot().is_idle());
        let guard = locks.acquire("k").await.expect("free");
        assert!(!locks.snapshot().is_idle());
        drop(guard);
        sleep(500 * MS).await;
        let snapshot = locks.snapshot();
        assert_eq!((snapshot.unreleased, snapshot.is_idle()), (1, false));
        sleep(SECOND).await;
        assert!(locks.snapshot().is_idle());
    }
}
