//! The request and the outcome of [`contend`](super::Backend::contend), which enters the queue of waiters.

use std::num::NonZeroU16;
use std::time::Duration;

use super::{AcquireRequest, Acquired, LeaseId, Mode};
use crate::LockKey;

/// The request of [`Backend::contend`](super::Backend::contend).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContendRequest {
    /// The key to acquire.
    pub key: LockKey,
    /// The lease that enters the queue and that shall hold the key.
    pub lease: LeaseId,
    /// The duration of the lease.
    pub ttl: Duration,
    /// `true` if the process has a [`watch`](super::Backend::watch) in effect for this key and manager.
    ///
    /// A waiter that listens is notified when the key is transferred to it. It is passed over if the
    /// notification does not reach it. A store that cannot reach it at the `contend` replies with
    /// `poll_after`. Any other waiter has a short time to detect the transfer by an attempt.
    pub listens: bool,
    /// How the lease shall hold the key. A lease that is in the queue may change it, and keeps its place.
    pub mode: Mode,
    /// The most permits of the key, this one included, if the mode is [`Mode::Permit`].
    pub limit: Option<NonZeroU16>,
}

impl ContendRequest {
    /// Creates a request to acquire `key` exclusively under `lease` for `ttl`, or to wait for it in the queue.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration, listens: bool) -> Self {
        Self {
            key,
            lease,
            ttl,
            listens,
            mode: Mode::Exclusive,
            limit: None,
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

    /// Returns the request without the queue.
    pub(crate) fn to_acquire(&self) -> AcquireRequest {
        AcquireRequest::new(self.key.clone(), self.lease, self.ttl)
            .with_mode(self.mode)
            .with_limit(self.limit)
    }
}

/// The outcome of [`Backend::contend`](super::Backend::contend).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contended {
    /// The key is held under the requested lease, which has left the queue.
    #[non_exhaustive]
    Granted {
        /// The base of the fencing tokens, below 2^53.
        counter: u64,
    },
    /// Another lease holds the key, or another waiter has the next turn.
    #[non_exhaustive]
    Waiting {
        /// The time after which an attempt can succeed without a hint: the remaining TTL of the holder,
        /// or the rest of a turn of clients outside the queue.
        ttl: Duration,
        /// The number of live waiters in the queue, this one included. `None` if this lease is not in
        /// the queue: the store has none, or no room for another waiter.
        queued: Option<u32>,
        /// The longest time until the next attempt of a waiter in the queue that no notification reaches, also if
        /// the request listens and the `watch` is interrupted. A store can pass over such a waiter until then.
        /// `None` for a waiter that listens, and from a store that passes over none: the engine then attempts
        /// after 100 ms.
        poll_after: Option<Duration>,
    },
}

impl Contended {
    /// Creates a grant under `counter`.
    #[must_use]
    pub fn granted(counter: u64) -> Self {
        Self::Granted { counter }
    }

    /// Creates the outcome of a waiter whose next attempt can succeed after `ttl`, in a queue of `queued`
    /// waiters.
    #[must_use]
    pub fn waiting(ttl: Duration, queued: impl Into<Option<u32>>) -> Self {
        let queued = queued.into();
        Self::Waiting {
            ttl,
            queued,
            poll_after: None,
        }
    }

    /// Creates the outcome of a waiter in a queue of `queued` waiters that no notification reaches, and whose next
    /// attempt is due within `poll_after`.
    #[must_use]
    pub fn polling(ttl: Duration, queued: u32, poll_after: impl Into<Option<Duration>>) -> Self {
        Self::Waiting {
            ttl,
            queued: Some(queued),
            poll_after: poll_after.into(),
        }
    }
}

/// Creates the outcome of an attempt in a store without a queue.
impl From<Acquired> for Contended {
    fn from(acquired: Acquired) -> Self {
        match acquired {
            Acquired::Granted { counter } => Self::granted(counter),
            Acquired::Busy { ttl } => Self::waiting(ttl, None),
        }
    }
}
