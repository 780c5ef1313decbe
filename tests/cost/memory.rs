//! The memory of held locks and of waiters, without the store and without the task of the caller.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::poll;
use tokio::runtime::Runtime;
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, Capabilities, ForceReleased, Hints, Holder, Release,
    Released, Renewal, Renewed,
};
use tower_lock::manager::AcquireFuture;
use tower_lock::{LockGuard, LockKey, LockManager};
use uuid::Uuid;

const LOCKS: usize = 100_000;
/// Without the guard, which the caller stores.
const PER_HELD_LOCK: usize = 400;
/// Without the guard.
const PER_READER: usize = 200;
/// With the future of the acquire.
const PER_WAITER: usize = 600;

/// A store that remembers no lease.
#[derive(Default)]
struct Forgetful(AtomicU64);

impl Backend for Forgetful {
    async fn try_acquire(&self, _: &AcquireRequest) -> Result<Acquired, BackendError> {
        let counter = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Acquired::granted(counter))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        vec![Ok(Renewed::Renewed); renewals.len()]
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        vec![Ok(Released::Released); leases.len()]
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE.with_shared()
    }

    fn watch(&self, _: &LockKey, _: Uuid) -> Hints {
        Hints::channel().1
    }

    async fn inspect(&self, _: &LockKey) -> Result<Option<Holder>, BackendError> {
        Ok(None)
    }

    async fn force_release(
        &self,
        _: &LockKey,
        _: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        Ok(ForceReleased::NotHeld)
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

/// Returns the bytes that `work` keeps for each of its locks.
fn bytes_each<T>(runtime: &Runtime, work: impl Future<Output = Vec<T>>) -> usize {
    let mut kept = Vec::new();
    let memory = allocation_counter::measure(|| kept = runtime.block_on(work));
    assert_eq!(kept.len(), LOCKS);
    usize::try_from(memory.bytes_current).unwrap() / LOCKS
}

#[test]
fn held_lock_needs_at_most_400_bytes() {
    let (runtime, locks) = (runtime(), LockManager::builder(Forgetful::default()));
    // Its background work runs on this thread, too.
    let locks = runtime.block_on(async { locks.build().unwrap() });
    // The engine allocates its own counts and tasks first.
    runtime.block_on(async { drop(locks.acquire("k").await.unwrap()) });
    let bytes = bytes_each(&runtime, async {
        let mut guards = Vec::with_capacity(LOCKS);
        for n in 0..LOCKS {
            guards.push(locks.acquire(format!("order:{n}")).await.unwrap());
        }
        guards
    });
    let bytes = bytes - size_of::<LockGuard>();
    println!("{bytes} bytes per held lock");
    assert!(bytes <= PER_HELD_LOCK, "{bytes} bytes");
}

#[test]
fn waiter_needs_at_most_600_bytes() {
    let (runtime, locks) = (runtime(), LockManager::builder(Forgetful::default()));
    let locks = locks.max_waiters_per_key(LOCKS).max_waiters(LOCKS);
    let locks = runtime.block_on(async { locks.build().unwrap() });
    let _held = runtime.block_on(locks.acquire("k").into_future()).unwrap();
    let bytes = bytes_each(&runtime, async {
        let mut waiters = Vec::with_capacity(LOCKS);
        for _ in 0..LOCKS {
            let acquire = locks.acquire("k").wait(Duration::from_secs(60));
            let mut waiter = Box::pin(acquire.into_future());
            assert!(poll!(&mut waiter).is_pending());
            waiters.push(waiter);
        }
        waiters
    });
    let bytes = bytes - size_of::<Pin<Box<AcquireFuture>>>();
    println!("{bytes} bytes per waiter");
    assert!(bytes <= PER_WAITER, "{bytes} bytes");
}

#[test]
fn joined_reader_needs_at_most_200_bytes() {
    let (runtime, locks) = (runtime(), LockManager::builder(Forgetful::default()));
    let locks = runtime.block_on(async { locks.build().unwrap() });
    let _first = runtime.block_on(locks.acquire("k").shared().into_future());
    let bytes = bytes_each(&runtime, async {
        let mut guards = Vec::with_capacity(LOCKS);
        for _ in 0..LOCKS {
            guards.push(locks.acquire("k").shared().await.unwrap());
        }
        guards
    });
    let bytes = bytes - size_of::<LockGuard>();
    println!("{bytes} bytes per reader");
    assert!(bytes <= PER_READER, "{bytes} bytes");
}
