//! The object-safe twin of [`Backend`], so that the manager needs no type parameter.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Acquired, Backend, BackendError, Extended, ForceReleased, Hints, Holder, Immediate, LeaseId,
    Passed, Released, Renewal, Renewed,
};
use crate::LockKey;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Answer<T> = BoxFuture<Result<T, BackendError>>;

/// Every future owns its backend: a background task can finish what its caller dropped.
pub(crate) trait ErasedBackend: Send + Sync {
    fn try_acquire(
        self: Arc<Self>,
        key: LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Answer<Acquired>;
    fn renew(
        self: Arc<Self>,
        renewals: Vec<Renewal>,
    ) -> BoxFuture<Vec<Result<Renewed, BackendError>>>;
    fn release(
        self: Arc<Self>,
        leases: Vec<(LockKey, LeaseId)>,
    ) -> BoxFuture<Vec<Result<Released, BackendError>>>;
    fn pass(self: Arc<Self>, key: LockKey, lease: LeaseId, ttl: Duration) -> Answer<Passed>;
    fn extend(self: Arc<Self>, key: LockKey, lease: LeaseId, ttl: Duration) -> Answer<Extended>;
    fn watch(&self, key: &LockKey) -> Hints;
    fn recoveries(&self) -> Hints;
    fn group(&self, key: &LockKey) -> u64;
    fn tokens_per_counter(&self) -> u32;
    fn inspect(self: Arc<Self>, key: LockKey) -> Answer<Option<Holder>>;
    fn force_release(self: Arc<Self>, key: LockKey) -> Answer<ForceReleased>;
    fn immediate(&self) -> Option<&dyn Immediate>;
}

impl<B: Backend> ErasedBackend for B {
    fn try_acquire(
        self: Arc<Self>,
        key: LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Answer<Acquired> {
        Box::pin(async move { Backend::try_acquire(&*self, &key, lease, ttl).await })
    }

    fn renew(
        self: Arc<Self>,
        renewals: Vec<Renewal>,
    ) -> BoxFuture<Vec<Result<Renewed, BackendError>>> {
        Box::pin(async move { Backend::renew(&*self, &renewals).await })
    }

    fn release(
        self: Arc<Self>,
        leases: Vec<(LockKey, LeaseId)>,
    ) -> BoxFuture<Vec<Result<Released, BackendError>>> {
        Box::pin(async move { Backend::release(&*self, &leases).await })
    }

    fn pass(self: Arc<Self>, key: LockKey, lease: LeaseId, ttl: Duration) -> Answer<Passed> {
        Box::pin(async move { Backend::pass(&*self, &key, lease, ttl).await })
    }

    fn extend(self: Arc<Self>, key: LockKey, lease: LeaseId, ttl: Duration) -> Answer<Extended> {
        Box::pin(async move { Backend::extend(&*self, &key, lease, ttl).await })
    }

    fn watch(&self, key: &LockKey) -> Hints {
        Backend::watch(self, key)
    }

    fn recoveries(&self) -> Hints {
        Backend::recoveries(self)
    }

    fn group(&self, key: &LockKey) -> u64 {
        Backend::group(self, key)
    }

    fn tokens_per_counter(&self) -> u32 {
        Backend::tokens_per_counter(self)
    }

    fn inspect(self: Arc<Self>, key: LockKey) -> Answer<Option<Holder>> {
        Box::pin(async move { Backend::inspect(&*self, &key).await })
    }

    fn force_release(self: Arc<Self>, key: LockKey) -> Answer<ForceReleased> {
        Box::pin(async move { Backend::force_release(&*self, &key).await })
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Backend::immediate(self)
    }
}
