//! The Redis backend of tower-lock without the engine: no queue, no watchdog, no guard. Beside the bare
//! scripts, it shows where the time of an acquire is spent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_lock::backend::Backend as _;
use tower_lock::backend::{AcquireRequest, Acquired, LeaseId, Release, Released};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use super::bare::pause;
use crate::work::{Failure, Locks};

const LEASE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(crate) struct OursBackend {
    backend: RedisBackend,
    manager: Uuid,
    leases: Arc<AtomicU64>,
}

pub(crate) async fn connect(url: &str) -> Result<OursBackend, Failure> {
    Ok(OursBackend {
        backend: RedisBackend::builder(url).connect().await?,
        manager: Uuid::new_v4(),
        leases: Arc::default(),
    })
}

impl Locks for OursBackend {
    type Held = Release;

    async fn lock(&self, key: &str) -> Result<Self::Held, Failure> {
        let key = LockKey::new(key);
        let lease = LeaseId::new(self.manager, self.leases.fetch_add(1, Ordering::Relaxed));
        let request = AcquireRequest::new(key.clone(), lease, LEASE);
        while let Acquired::Busy { .. } = self.backend.try_acquire(&request).await? {
            pause().await;
        }
        Ok(Release::new(key, lease))
    }

    async fn unlock(&self, held: Self::Held) -> Result<(), Failure> {
        match self.backend.release(&[held]).await.pop() {
            Some(Ok(Released::Released)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
            _ => Err("the lock was not held".into()),
        }
    }
}
