//! The holder of a key, as a store describes it.

use std::time::Duration;

use super::Mode;

/// The holder of a key as the backend stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The lease, or the holder name that another client such as Redisson wrote.
    pub id: String,
    /// The remaining TTL of the lease.
    pub ttl: Duration,
    /// The hold count in the store. It is 1 for leases of this crate, which counts in the process.
    pub hold_count: u64,
    /// The number of places in the queue, or 0 if the store has no queue or does not disclose it.
    pub queued: u32,
    /// How the key is held, or [`Mode::Exclusive`] if the store does not disclose it.
    pub mode: Mode,
    /// The number of leases that hold the key. With several, [`id`](Self::id) is the one with the latest end.
    pub leases: u32,
}

impl Holder {
    /// Creates a holder with an empty queue behind it.
    #[must_use]
    pub fn new(id: String, ttl: Duration, hold_count: u64) -> Self {
        Self {
            id,
            ttl,
            hold_count,
            queued: 0,
            mode: Mode::Exclusive,
            leases: 1,
        }
    }

    /// Sets the number of the shared leases that hold the key.
    #[must_use]
    pub fn with_shared(mut self, leases: u32) -> Self {
        self.mode = Mode::Shared;
        self.leases = leases;
        self
    }

    /// Sets the number of the permits that hold the key.
    #[must_use]
    pub fn with_permits(mut self, leases: u32) -> Self {
        self.mode = Mode::Permit;
        self.leases = leases;
        self
    }

    /// Sets the number of processes in the queue.
    #[must_use]
    pub fn with_queued(mut self, queued: u32) -> Self {
        self.queued = queued;
        self
    }
}
