//! A semaphore in the process for one key, which shows the cost of a permit on this machine.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::PERMITS;
use crate::work::{Failure, Locks};

#[derive(Clone)]
pub(crate) struct Semaphore(Arc<tokio::sync::Semaphore>);

impl Semaphore {
    pub(crate) fn new() -> Self {
        Self(Arc::new(tokio::sync::Semaphore::new(PERMITS as usize)))
    }
}

impl Locks for Semaphore {
    type Held = OwnedSemaphorePermit;

    async fn lock(&self, _the_one: &str) -> Result<Self::Held, Failure> {
        Ok(Arc::clone(&self.0).acquire_owned().await?)
    }

    async fn unlock(&self, held: Self::Held) -> Result<(), Failure> {
        drop(held);
        Ok(())
    }
}
