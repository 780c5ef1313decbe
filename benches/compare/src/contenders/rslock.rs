//! rslock with its defaults: `SET NX PX` on one multiplexed connection. An attempt on a held key is
//! repeated after up to 200 ms.

use std::time::Duration;

use rslock::{LockGuard, LockManager};

use crate::work::{Failure, Locks};

const LEASE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(crate) struct Rslock(LockManager);

pub(crate) fn connect(url: &str) -> Result<Rslock, Failure> {
    let client = redis::Client::open(url)?;
    Ok(Rslock(LockManager::from_clients(vec![client])))
}

impl Locks for Rslock {
    type Held = LockGuard;

    async fn lock(&self, key: &str) -> Result<LockGuard, Failure> {
        Ok(self.0.acquire(key, LEASE).await?)
    }

    async fn unlock(&self, guard: LockGuard) -> Result<(), Failure> {
        guard.release().await;
        Ok(())
    }
}
