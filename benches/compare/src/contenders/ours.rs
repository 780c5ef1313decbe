//! tower-lock, with its defaults.

use std::time::Duration;

use tokio::time::sleep;
use tower_lock::{LockGuard, LockManager};

use crate::work::{Failure, Locks};

#[derive(Clone, Copy)]
pub(crate) enum Release {
    /// The guard is dropped, as the layer does: the server hears of it while the caller goes on.
    Background,
    /// The caller waits for the server, as all others do.
    Awaited,
}

#[derive(Clone)]
pub(crate) struct Ours {
    locks: LockManager,
    release: Release,
}

pub(crate) async fn connect(url: &str, release: Release) -> Result<Ours, Failure> {
    let locks = LockManager::connect(url).await?;
    Ok(Ours { locks, release })
}

impl Locks for Ours {
    type Held = LockGuard;

    async fn lock(&self, key: &str) -> Result<LockGuard, Failure> {
        Ok(self.locks.acquire(key).await?)
    }

    async fn unlock(&self, guard: LockGuard) -> Result<(), Failure> {
        match self.release {
            Release::Background => drop(guard),
            Release::Awaited => guard.release().await?,
        }
        Ok(())
    }

    async fn settled(&self) {
        while !self.locks.snapshot().is_idle() {
            sleep(Duration::from_micros(100)).await;
        }
    }
}
