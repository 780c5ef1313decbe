//! The modes of leases that a backend supports.

use crate::mode::Mode;

/// The modes that a backend supports besides [`Mode::Exclusive`], which each backend does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Modes {
    /// Whether the backend supports [`Mode::Shared`].
    pub shared: bool,
    /// Whether the backend supports [`Mode::Permit`].
    pub permits: bool,
}

impl Modes {
    /// Only exclusive leases.
    pub const EXCLUSIVE: Self = Self {
        shared: false,
        permits: false,
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

    pub(crate) fn include(self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shared,
            Mode::Permit => self.permits,
        }
    }
}
