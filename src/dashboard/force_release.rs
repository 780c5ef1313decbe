use std::fmt;

use super::operator::Operator;
use crate::LockKey;

/// A forced release that an operator requests.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ForceRelease {
    /// The operator, or `None` on an [unprotected](super::Dashboard::unprotected) dashboard.
    pub operator: Option<Operator>,
    /// The key to release.
    pub key: LockKey,
    /// The owner that the operator has seen, as [`LockInfo::owner`](crate::manager::LockInfo::owner).
    pub owner: String,
    /// The operator's reason, of 8 to 500 characters.
    pub reason: String,
}

/// Admits or rejects a forced release.
pub(super) type Audit = dyn Fn(&ForceRelease) -> Result<(), Veto> + Send + Sync;

/// The rejection of a forced release, with the text that the operator sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Veto(String);

impl Veto {
    /// Creates a rejection with a reason for the operator.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
