//! tower-lock, with its defaults, except that an acquire waits for longer: a client that starves must
//! show as a long wait, as it does with the others, not as an error.

use std::time::Duration;

use tokio::time::sleep;
use tower_lock::{LockGuard, LockManager};

use crate::work::{Failure, Locks};

/// More than a job takes.
const WAIT: Duration = Duration::from_secs(120);

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
        Ok(self.locks.acquire(key).wait(WAIT).await?)
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
