//! The requests of commands.

use std::num::NonZeroU16;
use std::time::Duration;

use super::{LeaseId, Mode};
use crate::LockKey;

/// The request of [`Backend::try_acquire`](super::Backend::try_acquire), and of [`contend`](super::Backend::contend), which
/// also enters the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key to acquire.
    pub key: LockKey,
    /// The lease that shall hold the key, and that `contend` enters into the queue.
    pub lease: LeaseId,
    /// The duration of the lease.
    pub ttl: Duration,
    /// How the lease shall hold the key, by a mode that the [capabilities](super::Backend::capabilities) of the backend
    /// include. A lease that is in the queue may change it, and keeps its place.
    pub mode: Mode,
    /// The most permits of the key, this one included, if the mode is [`Mode::Permit`].
    pub limit: Option<NonZeroU16>,
    /// `true` if the process has a [`watch`](super::Backend::watch) in effect for this key and manager. Only `contend`
    /// reads it.
    ///
    /// A waiter that listens is notified when the key is transferred to it. It is passed over if the
    /// notification does not reach it. A store that cannot reach it at the `contend` replies with
    /// `poll_after`. Any other waiter has a short time to detect the transfer by an attempt.
    pub listens: bool,
    /// For how long an exclusive lease that shared ones exclude keeps further shared leases of other managers out, or
    /// `None` if it does not. The end of this time, or a grant, admits them again.
    ///
    /// A [`Quorum`](crate::Quorum) sets it for a lease that waits. Only a [`vote`](super::super::Node::vote) obeys it:
    /// any other store has a queue, or no order.
    pub intent: Option<Duration>,
}

impl AcquireRequest {
    /// Creates a request to acquire `key` exclusively under `lease` for `ttl`, without a `watch`.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            mode: Mode::Exclusive,
            limit: None,
            listens: false,
            intent: None,
        }
    }

    /// Sets how the lease shall hold the key.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the most permits of the key, for [`Mode::Permit`].
    #[must_use]
    pub fn with_limit(mut self, limit: Option<NonZeroU16>) -> Self {
        self.limit = limit;
        self
    }

    /// Sets whether a `watch` is in effect.
    #[must_use]
    pub fn with_listening(mut self, listens: bool) -> Self {
        self.listens = listens;
        self
    }

    /// Sets for how long the lease keeps further shared leases out if it is not granted.
    #[must_use]
    pub fn with_intent(mut self, intent: Duration) -> Self {
        self.intent = Some(intent);
        self
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
    /// How the lease holds the key.
    pub mode: Mode,
}

impl Renewal {
    /// Creates a renewal of the exclusive lease on `key` for `ttl` from now on.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            mode: Mode::Exclusive,
        }
    }

    /// Sets how the lease holds the key.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
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

/// The request of [`Backend::release_or_keep`](super::Backend::release_or_keep).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepRequest {
    /// The key.
    pub key: LockKey,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// The requested TTL from now on. A longer remaining TTL stays.
    pub ttl: Duration,
    /// How many consecutive counters the lease takes if it is kept, from 1 to [`MAX_COUNTERS`](Self::MAX_COUNTERS). The
    /// engine requests twice as many as the owners of this process used since the last grant or keep.
    pub counters: u32,
    /// The lease that enters the queue if this one is released, or `None` if no waiter of this process is left.
    pub next: Option<LeaseId>,
    /// `true` if `next` listens, as in [`AcquireRequest::listens`](crate::backend::AcquireRequest::listens).
    pub listens: bool,
}

impl KeepRequest {
    /// The largest number of [`counters`](Self::counters).
    pub const MAX_COUNTERS: u32 = 256;

    /// Creates a request to keep the lease on `key` for `ttl` from now on, under one counter and without a next lease.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            counters: 1,
            next: None,
            listens: false,
        }
    }

    /// Sets how many counters the lease takes if it is kept, at least 1 and at most
    /// [`MAX_COUNTERS`](Self::MAX_COUNTERS).
    #[must_use]
    pub fn with_counters(mut self, counters: u32) -> Self {
        self.counters = counters.clamp(1, Self::MAX_COUNTERS);
        self
    }

    /// Sets the lease that enters the queue if this one is released, and whether it listens.
    #[must_use]
    pub fn with_next(mut self, next: LeaseId, listens: bool) -> Self {
        self.next = Some(next);
        self.listens = listens;
        self
    }
}
