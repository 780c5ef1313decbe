//! The number of a lease.

use crate::backend::LeaseId;

/// The number of a lease within its manager. The manager's part of the [`LeaseId`] is not stored,
/// because it would be the same for every held lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseNumber(u64);

impl LeaseNumber {
    /// Returns the number of a lease of this manager.
    pub(crate) fn of(id: LeaseId) -> Self {
        Self(id.number())
    }

    /// Returns the number as backends know it.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}
