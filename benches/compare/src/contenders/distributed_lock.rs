//! The Redis backend of distributed-lock, with its defaults. On one server its `acquire` does not wait,
//! with or without a timeout: it fails after one attempt, so the caller must retry.

use std::sync::Arc;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};

use super::bare::pause;
use crate::work::{Failure, Locks};

#[derive(Clone)]
pub(crate) struct DistributedLock(Arc<RedisLockProvider>);

pub(crate) async fn connect(url: &str) -> Result<DistributedLock, Failure> {
    let provider = RedisLockProvider::new(url).await?;
    Ok(DistributedLock(Arc::new(provider)))
}

impl Locks for DistributedLock {
    type Held = RedisLockHandle;

    async fn lock(&self, key: &str) -> Result<RedisLockHandle, Failure> {
        let lock = self.0.create_lock(key);
        loop {
            match lock.acquire(None).await {
                Ok(handle) => return Ok(handle),
                Err(LockError::Timeout(_)) => pause().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn unlock(&self, handle: RedisLockHandle) -> Result<(), Failure> {
        Ok(handle.release().await?)
    }
}
