//! The requests of commands.

use std::time::Duration;

use super::LeaseId;
use crate::LockKey;

/// The request of [`Backend::try_acquire`](super::Backend::try_acquire).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key to acquire.
    pub key: LockKey,
    /// The lease that shall hold the key.
    pub lease: LeaseId,
    /// The duration of the lease.
    pub ttl: Duration,
}

impl AcquireRequest {
    /// Creates a request to acquire `key` under `lease` for `ttl`.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self { key, lease, ttl }
    }
}

/// One lease to renew.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The key.
    pub key: LockKey,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// The requested TTL from now on. A longer remaining TTL stays.
    pub ttl: Duration,
}

impl Renewal {
    /// Creates a renewal of the lease on `key` for `ttl` from now on.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self { key, lease, ttl }
    }
}

/// One lease to release or to [leave](super::Backend::leave).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The key.
    pub key: LockKey,
    /// The lease that holds the key, or that is in its queue.
    pub lease: LeaseId,
}

impl Release {
    /// Creates a release of the lease on `key`.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId) -> Self {
        Self { key, lease }
    }
}

/// The request of [`Backend::release_or_keep`](super::Backend::release_or_keep) and
/// [`Backend::extend`](super::Backend::extend).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepRequest {
    /// The key.
    pub key: LockKey,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// The requested TTL from now on. A longer remaining TTL stays.
    pub ttl: Duration,
    /// The lease that enters the queue if this one is released, or `None` if no waiter of this process is
    /// left. [`Backend::extend`](super::Backend::extend) ignores it.
    pub next: Option<LeaseId>,
    /// `true` if `next` listens, as in [`ContendRequest::listens`](crate::backend::ContendRequest::listens).
    pub listens: bool,
}

impl KeepRequest {
    /// Creates a request to keep the lease on `key` for `ttl` from now on, without a next lease.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            next: None,
            listens: false,
        }
    }

    /// Sets the lease that enters the queue if this one is released, and whether it listens.
    #[must_use]
    pub fn with_next(mut self, next: LeaseId, listens: bool) -> Self {
        self.next = Some(next);
        self.listens = listens;
        self
    }
}
