//! What a backend supports.

use std::time::Duration;

use crate::mode::Mode;

/// The modes and bounds of a backend. Each backend supports [`Mode::Exclusive`]. The values must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether the backend supports [`Mode::Shared`].
    pub shared: bool,
    /// Whether the backend supports [`Mode::Permit`].
    pub permits: bool,
    /// How many fencing tokens one counter stands for, from 1 to 256. By default 256.
    ///
    /// One token belongs to the grant. The others belong to the holders that receive the lease by local
    /// hand-off, without a command. A backend whose counters also serve other clients must have 1.
    pub tokens_per_counter: u32,
    /// Whether a lease may be kept for the next acquire after the last hold.
    pub(crate) may_be_kept: bool,
    /// The longest time that one command takes on an open connection until it has an outcome or
    /// an error. By default 500 ms.
    ///
    /// The engine bounds an attempt without waiting (`no_wait`) by this time.
    pub response_timeout: Duration,
}

impl Capabilities {
    /// Only exclusive leases, and the default bounds.
    pub const EXCLUSIVE: Self = Self {
        shared: false,
        permits: false,
        tokens_per_counter: 256,
        may_be_kept: true,
        response_timeout: Duration::from_millis(500),
    };

    /// Adds shared leases.
    #[must_use]
    pub const fn with_shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Adds permits.
    #[must_use]
    pub const fn with_permits(mut self) -> Self {
        self.permits = true;
        self
    }

    /// Sets how many fencing tokens one counter stands for.
    #[must_use]
    pub const fn with_tokens_per_counter(mut self, tokens: u32) -> Self {
        self.tokens_per_counter = tokens;
        self
    }

    /// Sets the longest time of one command.
    #[must_use]
    pub const fn with_response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    pub(crate) fn include(self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shared,
            Mode::Permit => self.permits,
        }
    }
}
