//! A mutex in the process for one key, without a store, a lease or a token. It shows the cost of a hand-off
//! on this machine, and how long the machine can preempt a holder.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use crate::work::{Failure, Locks};

#[derive(Clone, Default)]
pub(crate) struct Mutex(Arc<tokio::sync::Mutex<()>>);

impl Locks for Mutex {
    type Held = OwnedMutexGuard<()>;

    async fn lock(&self, _the_one: &str) -> Result<Self::Held, Failure> {
        Ok(Arc::clone(&self.0).lock_owned().await)
    }

    async fn unlock(&self, held: Self::Held) -> Result<(), Failure> {
        drop(held);
        Ok(())
    }
}
