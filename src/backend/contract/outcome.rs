//! The outcomes of commands.

use std::time::Duration;

/// The outcome of [`Backend::try_acquire`](super::Backend::try_acquire).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The key is held under the requested lease.
    #[non_exhaustive]
    Granted {
        /// The base of the fencing tokens, below 2^53.
        counter: u64,
    },
    /// Another lease holds the key.
    #[non_exhaustive]
    Busy {
        /// The remaining TTL of that lease. A holder without a TTL is an error of kind
        /// [`Conflict`](super::BackendErrorKind::Conflict).
        ttl: Duration,
    },
}

impl Acquired {
    /// Creates a grant under `counter`.
    #[must_use]
    pub fn granted(counter: u64) -> Self {
        Self::Granted { counter }
    }

    /// Creates a rejection by a holder with the remaining TTL `ttl`.
    #[must_use]
    pub fn busy(ttl: Duration) -> Self {
        Self::Busy { ttl }
    }
}

/// The outcome of one [`Renewal`](super::Renewal).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// The remaining TTL is at least the requested one.
    Renewed,
    /// The remaining TTL of a shared lease is at least the requested one, and an exclusive lease waits: no other
    /// owner of this process should join the shared one.
    Wanted,
    /// The lease does not hold the key: it expired, was released by force, or the store lost its data.
    NotHeld,
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

    /// Creates the outcome of an attempt in a store without a queue.
    #[must_use]
    pub fn of(acquired: Acquired) -> Self {
        match acquired {
            Acquired::Granted { counter } => Self::granted(counter),
            Acquired::Busy { ttl } => Self::waiting(ttl, None),
        }
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

/// The outcome of [`Backend::downgrade`](super::Backend::downgrade).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Downgraded {
    /// The lease is shared now, and its remaining TTL is at least the requested one.
    #[non_exhaustive]
    Shared {
        /// The base of the fencing tokens, below 2^53.
        counter: u64,
    },
    /// The lease did not hold the key.
    NotHeld,
}

impl Downgraded {
    /// Creates the outcome of a lease that is shared now, under `counter`.
    #[must_use]
    pub fn shared(counter: u64) -> Self {
        Self::Shared { counter }
    }
}

/// The outcome of one [`Release`](super::Release).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The key is free now.
    Released,
    /// The first waiter of the queue holds the key now. It can be a waiter of this process.
    Transferred,
    /// The key is free now, and clients outside the queue have the next turn. A
    /// [`contend`](super::Backend::contend) waits for its end, a
    /// [`try_acquire`](super::Backend::try_acquire) takes the turn away.
    LeftToOthers,
    /// The lease did not hold the key.
    NotHeld,
}

/// The outcome of [`Backend::release_or_keep`](super::Backend::release_or_keep).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleasedOrKept {
    /// No other process waits: the lease continues.
    #[non_exhaustive]
    Kept {
        /// The first of the [requested](super::KeepRequest::counters) consecutive counters, which only this lease
        /// uses. They are fresh bases of fencing tokens, so a busy key needs few commands. `None` if the store has no
        /// room to count: the lease continues with the tokens that are left of its own counter.
        counter: Option<u64>,
    },
    /// Other processes may be waiting: the lease has ended.
    #[non_exhaustive]
    Released {
        /// The outcome for the key. Never [`Released::NotHeld`].
        released: Released,
        /// The number of other processes that wait, or 0 if it is unknown. Without a queue, this process
        /// contends again after 5 ms.
        watchers: u32,
        /// `true` if the [`next`](super::KeepRequest::next) lease may be in the queue. The engine then
        /// contends under it, or leaves.
        queued: bool,
        /// `true` if the next lease listens in the queue, so a hint reports its transfer for certain. The engine then
        /// sends the first `contend` after this hint, or within 1.1 seconds. Otherwise it sends one at once.
        listens: bool,
    },
    /// The lease did not hold the key.
    NotHeld,
}

impl ReleasedOrKept {
    /// Creates the outcome of a lease that continues under `counter` and the counters after it, or under its
    /// own if there is none.
    #[must_use]
    pub fn kept(counter: impl Into<Option<u64>>) -> Self {
        let counter = counter.into();
        Self::Kept { counter }
    }

    /// Creates the outcome of a lease that was released for `watchers` other processes. The key is free.
    #[must_use]
    pub fn released(watchers: u32) -> Self {
        Self::passed(Released::Released, watchers, false)
    }

    /// Creates the outcome of a lease that was `released` for `watchers` other processes. `queued` states
    /// whether the next lease may be in the queue.
    #[must_use]
    pub fn passed(released: Released, watchers: u32, queued: bool) -> Self {
        Self::Released {
            released,
            watchers,
            queued,
            listens: false,
        }
    }

    /// Sets whether the next lease listens in the queue. Changes only [`Released`](Self::Released).
    #[must_use]
    pub fn with_listening(mut self, is_listening: bool) -> Self {
        if let Self::Released { listens, .. } = &mut self {
            *listens = is_listening;
        }
        self
    }
}

/// The outcome of [`Backend::force_release`](super::Backend::force_release).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForceReleased {
    /// The key was held and is free now.
    Released,
    /// The key was free, or its holder ended during the call.
    NotHeld,
}
