//! Code of the program that blocks the thread of one manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, ForceReleased, Hints, Holder, Release,
    Released, Renewal, Renewed,
};
use tower_lock::{LockKey, LockManager, Memory};
use uuid::Uuid;

use crate::support::engine::{MS, SECOND};
use crate::support::other_runtime::current_thread;
use crate::support::simulated::Simulated;

const LEASE: Duration = SECOND;
/// The tolerance for a busy machine.
const LATE: Duration = Duration::from_millis(300);

/// A store whose next renewal blocks its thread for twice the lease.
#[derive(Clone, Default)]
struct Blocking {
    memory: Memory,
    blocks: Arc<AtomicBool>,
}

impl Backend for Blocking {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        self.memory.try_acquire(request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        if self.blocks.swap(false, Ordering::SeqCst) {
            thread::sleep(2 * LEASE);
        }
        self.memory.renew(renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.memory.release(leases).await
    }

    fn watch(&self, key: &LockKey, lease: Uuid) -> Hints {
        self.memory.watch(key, lease)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        self.memory.force_release(key, holder).await
    }
}

fn built(backend: impl Backend) -> LockManager {
    let locks = LockManager::builder(backend).watchdog_timeout(LEASE);
    locks.build().unwrap()
}

/// The guards of the manager are lost in time, and the other manager notices nothing.
#[test]
fn blocked_home_harms_only_its_manager() {
    let backend = Blocking::default();
    let (harmed, spared) = (built(backend.clone()), built(Simulated::new(MS)));
    current_thread().block_on(async {
        let lost = harmed.acquire("k").await.unwrap();
        let kept = spared.acquire("k").await.unwrap();
        backend.blocks.store(true, Ordering::SeqCst);
        let began = Instant::now();
        let losing = tokio::spawn({
            let lost = lost.lost();
            async move {
                lost.await;
                began.elapsed()
            }
        });
        while began.elapsed() < 2 * LEASE {
            let asked = Instant::now();
            let guard = spared.acquire("other").await.unwrap();
            guard.release().await.unwrap();
            let took = asked.elapsed();
            assert!(took < LATE, "delayed for {took:?}");
            assert!(kept.is_held());
            sleep(20 * MS).await;
        }
        assert!(
            !backend.blocks.load(Ordering::SeqCst),
            "nothing was renewed"
        );
        assert!(!lost.is_held());
        // A renewal is due after a third of the lease.
        let took = losing.await.unwrap();
        assert!(took <= LEASE + LATE, "reported after {took:?}");
        // The thread continues.
        let next = timeout(2 * LEASE, harmed.acquire("k").into_future()).await;
        let next = next.expect("the lease has expired").unwrap();
        sleep(2 * LEASE).await;
        assert!(next.is_held() && kept.is_held());
    });
}
