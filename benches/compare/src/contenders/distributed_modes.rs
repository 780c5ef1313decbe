//! The read-write lock and the semaphore of distributed-lock on Redis, with their defaults. A writer and a semaphore
//! wait in a loop of their own. A reader fails after one attempt, so the caller must retry.

use std::sync::Arc;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{
    DistributedReaderWriterLock as _, DistributedSemaphore as _, LockHandle as _,
    ReaderWriterLockProvider as _, SemaphoreProvider as _,
};
use distributed_lock_redis::{
    RedisLockProvider, RedisReadLockHandle, RedisSemaphoreHandle, RedisWriteLockHandle,
};

use super::PERMITS;
use super::bare::pause;
use crate::work::{Failure, Locks};

#[derive(Clone)]
pub(crate) struct ReadWrite(Arc<RedisLockProvider>);

pub(crate) async fn read_write(url: &str) -> Result<ReadWrite, Failure> {
    Ok(ReadWrite(Arc::new(RedisLockProvider::new(url).await?)))
}

pub(crate) enum Held {
    Read(RedisReadLockHandle),
    Write(RedisWriteLockHandle),
}

impl Locks for ReadWrite {
    type Held = Held;

    async fn lock(&self, key: &str) -> Result<Held, Failure> {
        let lock = self.0.create_reader_writer_lock(key);
        Ok(Held::Write(lock.acquire_write(None).await?))
    }

    async fn share(&self, key: &str) -> Result<Held, Failure> {
        let lock = self.0.create_reader_writer_lock(key);
        loop {
            match lock.acquire_read(None).await {
                Ok(handle) => return Ok(Held::Read(handle)),
                Err(LockError::Timeout(_)) => pause().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn unlock(&self, held: Held) -> Result<(), Failure> {
        match held {
            Held::Read(handle) => handle.release().await?,
            Held::Write(handle) => handle.release().await?,
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Semaphore(Arc<RedisLockProvider>);

pub(crate) async fn semaphore(url: &str) -> Result<Semaphore, Failure> {
    Ok(Semaphore(Arc::new(RedisLockProvider::new(url).await?)))
}

impl Locks for Semaphore {
    type Held = RedisSemaphoreHandle;

    async fn lock(&self, key: &str) -> Result<Self::Held, Failure> {
        let semaphore = self.0.create_semaphore(key, PERMITS);
        Ok(semaphore.acquire(None).await?)
    }

    async fn unlock(&self, handle: Self::Held) -> Result<(), Failure> {
        Ok(handle.release().await?)
    }
}
