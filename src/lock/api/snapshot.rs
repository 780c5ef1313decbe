//! The public view of a key.

use std::sync::Arc;
use std::time::Duration;

use crate::LockKey;
use crate::backend::{Holder, Mode};
use crate::lock::engine::Engine;

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
    /// the id that it wrote into the backend, `<uuid>:<number>`. Of several holders, one of this manager if there is
    /// one.
    pub owner: String,
    /// How the key is held. [`Mode::Exclusive`] if the backend does not disclose it, as Redis without the permission
    /// `+hgetall`.
    pub mode: Mode,
    /// The number of holders. Owners of another process that share the key have one lease, and count as one.
    pub holders: u32,
    /// The remaining TTL of the lease in the backend.
    pub ttl: Duration,
    /// The number of the owner's holds. Always 1 for other processes that use this crate.
    pub hold_count: u64,
    /// The number of waiters in this process.
    pub waiters: usize,
    /// The number of places in the queue of the backend, or 0 if it has none: one per process, and one per waiter for a
    /// permit that contends.
    pub queued: u32,
    /// Whether this process [keeps](crate::LockManagerBuilder::keep_released) the lease for its next acquire. No owner
    /// holds it then.
    pub kept: bool,
}

impl LockInfo {
    pub(crate) fn of(engine: &Arc<Engine>, key: &LockKey, holder: Holder) -> Self {
        let now = engine.now();
        // One of the owners of this process that hold the key, and the number of those that share it.
        let (mut first, mut shared) = (None, 0u32);
        let (mut waiters, mut kept) = (0, false);
        engine.inspect(key, |_, lane| {
            waiters += lane.waiters();
            kept |= lane.kept_lease().is_some();
            for grant in lane.holders().filter(|grant| grant.is_held(now)) {
                shared += u32::from(lane.mode() == Mode::Shared);
                first.get_or_insert_with(|| Arc::clone(grant));
            }
        });
        let (owner, hold_count) = match first {
            Some(grant) => (grant.owner().to_string(), grant.holds().into()),
            None => (holder.id, holder.hold_count),
        };
        // The owners of this process have one lease.
        let more = shared.saturating_sub(1);
        Self {
            owner,
            mode: holder.mode,
            holders: holder.leases.saturating_add(more),
            ttl: holder.ttl,
            hold_count,
            waiters,
            queued: holder.queued,
            kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::sleep;

    use crate::LockManager;
    use crate::backend::Memory;
    use crate::lock::table::counts::Snapshot;
    use crate::lock::tests::{MS, SECOND, Slow};

    #[tokio::test]
    async fn snapshot_counts_holders_and_waiters() {
        let locks = LockManager::in_memory();
        let (a, b) = (locks.acquire("a").await, locks.acquire("b").await);
        let mut waiter = pin!(locks.acquire("a").into_future());
        assert!(futures_util::poll!(&mut waiter).is_pending());
        let expected = Snapshot {
            held: 2,
            exclusive: 2,
            waiting: 1,
            lanes: 2,
            ..Snapshot::default()
        };
        assert_eq!(locks.snapshot(), expected);
        drop((a, b));
    }

    /// Each permit has a lane of its own, and the acquire of another mode waits in one as well.
    #[tokio::test(start_paused = true)]
    async fn snapshot_counts_each_key_once() {
        let locks = LockManager::in_memory();
        let shared = [
            locks.acquire("s").shared().await,
            locks.acquire("s").shared().await,
        ];
        let permits = [
            locks.acquire("p").permits(3).await,
            locks.acquire("p").permits(3).await,
            locks.acquire("q").permits(3).await,
        ];
        let exclusive = locks.acquire("e").await;
        let mut waiters = [
            Box::pin(locks.acquire("p").into_future()),
            Box::pin(locks.acquire("p").permits(1).into_future()),
            Box::pin(locks.acquire("p").permits(1).into_future()),
        ];
        for waiter in &mut waiters {
            assert!(futures_util::poll!(waiter).is_pending());
        }
        sleep(100 * MS).await;
        let expected = Snapshot {
            held: 4,
            exclusive: 1,
            shared: 2,
            permits: 3,
            waiting: 3,
            queued: 1,
            lanes: 4,
            unreleased: 0,
            kept: 0,
        };
        assert_eq!(locks.snapshot(), expected);
        drop((shared, permits, exclusive, waiters));
        sleep(SECOND).await;
        assert!(locks.snapshot().is_idle());
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
