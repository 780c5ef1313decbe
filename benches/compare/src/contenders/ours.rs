//! tower-lock with its defaults, except for a longer wait. A client that starves must show as a long wait,
//! as with the other contenders, and not as an error.

use std::time::Duration;

use tokio::time::sleep;
use tower_lock::manager::Acquire;
use tower_lock::{LockGuard, LockManager, LockManagerBuilder};

use super::{KEPT, PERMITS};
use crate::work::{Failure, Locks};

/// Longer than a job.
const WAIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy)]
pub(crate) enum Release {
    /// The guard is dropped, as in the layer: the release reaches the server in the background.
    Background,
    /// The caller awaits the release, as with the other contenders.
    Awaited,
}

#[derive(Clone)]
pub(crate) struct Ours {
    locks: LockManager,
    release: Release,
    /// Sets the mode of an acquire.
    mode: fn(Acquire) -> Acquire,
}

pub(crate) async fn connect(url: &str, release: Release) -> Result<Ours, Failure> {
    let locks = LockManager::connect(url).await?;
    Ok(Ours {
        locks,
        release,
        mode: |acquire| acquire,
    })
}

/// Leases that stay in the process, of which the guard is dropped.
pub(crate) async fn keeping(url: &str) -> Result<Ours, Failure> {
    let locks = LockManagerBuilder::new()
        .keep_released(KEPT)
        .connect(url)
        .await?;
    Ok(Ours {
        locks,
        ..in_memory()
    })
}

/// The bound for keys that come back: no lock leaves the process.
pub(crate) fn in_memory() -> Ours {
    Ours {
        locks: LockManager::in_memory(),
        release: Release::Background,
        mode: |acquire| acquire,
    }
}

/// Permits, of which the guard is dropped.
pub(crate) async fn permits(url: &str) -> Result<Ours, Failure> {
    Ok(Ours {
        mode: |acquire| acquire.permits(PERMITS),
        ..connect(url, Release::Background).await?
    })
}

impl Locks for Ours {
    type Held = LockGuard;

    async fn lock(&self, key: &str) -> Result<LockGuard, Failure> {
        Ok((self.mode)(self.locks.acquire(key)).wait(WAIT).await?)
    }

    async fn share(&self, key: &str) -> Result<LockGuard, Failure> {
        Ok(self.locks.acquire(key).shared().wait(WAIT).await?)
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
