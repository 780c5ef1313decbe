//! The contract, on several nodes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::builder::QuorumBuilder;
use super::inner::Inner;
use super::{acquire, ask, release};
use crate::LockKey;
use crate::backend::{
    Acquired, Backend, BackendError, ForceReleased, Hints, Holder, LeaseId, Passed, Released,
    Renewal, Renewed,
};

/// Several independent stores as one: a key is held by whoever holds it on a majority of them.
#[derive(Clone)]
pub struct Quorum {
    inner: Arc<Inner>,
}

impl Quorum {
    /// A quorum without nodes yet.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::new()
    }

    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}

impl Backend for Quorum {
    async fn try_acquire(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        acquire::try_acquire(&self.inner, key, lease, ttl).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        ask::renew(&self.inner, renewals).await
    }

    async fn release(&self, leases: &[(LockKey, LeaseId)]) -> Vec<Result<Released, BackendError>> {
        release::release(&self.inner, leases).await
    }

    /// Always releases. To keep the lease, all nodes would have to agree that nobody watches, and a
    /// majority on fresh counters: a node that is down, or whose watcher is on its way to the others,
    /// cannot say so, and those that kept it would have to be taken back from. What it would save
    /// is one acquire per hand-off budget, a tenth of a second.
    async fn pass(
        &self,
        key: &LockKey,
        lease: LeaseId,
        _ttl: Duration,
    ) -> Result<Passed, BackendError> {
        let outcomes = release::release(&self.inner, &[(key.clone(), lease)]).await;
        let passed = outcomes.into_iter().map(|outcome| match outcome? {
            Released::Released => Ok(Passed::Released),
            Released::NotHeld => Ok(Passed::NotHeld),
        });
        passed.last().unwrap_or(Ok(Passed::NotHeld))
    }

    fn watch(&self, key: &LockKey) -> Hints {
        let inner = &self.inner;
        let hints = inner.nodes.iter().map(|node| node.watch(key));
        Hints::gathered(hints, inner.majority())
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        ask::inspect(&self.inner, key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        ask::force_release(&self.inner, key).await
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("nodes", &self.inner.nodes.len())
            .field("node_timeout", &self.inner.node_timeout)
            .finish_non_exhaustive()
    }
}
