//! The identity of a lease in a store.

use std::fmt;

use uuid::Uuid;

/// The identifier of one lease in the backend: the UUID of the manager that requested it and a number.
///
/// Its text form is `<uuid>:<number>`, which is also how Redisson names the holders of its locks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId {
    pub(in crate::backend) manager: Uuid,
    pub(in crate::backend) number: u64,
}

impl LeaseId {
    /// Creates the identifier of a manager's lease `number`.
    #[must_use]
    pub fn new(manager: Uuid, number: u64) -> Self {
        Self { manager, number }
    }

    /// Returns the UUID of the manager, which [`Backend::watch`](super::Backend::watch) takes.
    #[must_use]
    pub fn manager(self) -> Uuid {
        self.manager
    }

    /// Returns the number that distinguishes the leases of one manager.
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.manager, self.number)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}
