use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, ForceReleased, Hints, Holder, Memory, Release,
    Released, Renewal, Renewed,
};
use crate::{LockKey, LockManager};

/// A backend whose replies to attempts take 200 ms.
#[derive(Clone, Default)]
struct Slow {
    memory: Arc<Memory>,
    attempts: Arc<AtomicUsize>,
}

impl Backend for Slow {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(200)).await;
        self.memory.try_acquire(request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.memory.release(leases).await
    }

    fn watch(&self, key: &LockKey) -> Hints {
        self.memory.watch(key)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        self.memory.force_release(key).await
    }
}

/// Both runtimes run all the time, and each waits for less than the response timeout.
#[test]
fn attempt_of_running_task_is_not_replaced() {
    let backend = Slow::default();
    let attempts = Arc::clone(&backend.attempts);
    let locks = LockManager::builder(backend).build().expect("defaults");
    let acquire = |locks: LockManager| {
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let guard = locks.acquire("k").await.expect("a turn");
                sleep(Duration::from_millis(20)).await;
                drop(guard);
            });
        })
    };
    let both = [acquire(locks.clone()), acquire(locks.clone())];
    for thread in both {
        thread.join().expect("both have their turn");
    }
    // One attempt for the first acquire, and at most one for the second.
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts <= 2, "{attempts} attempts");
}
