//! The keys other than the names of locks.

use super::invalid::InvalidKey;
use super::lock_key::LockKey;
use crate::Owner;

/// A key other than the name of a lock.
pub(super) enum Rare {
    Invalid(InvalidKey),
    Permit(Permit),
}

/// The key of the lane in which an owner acquires a permit of `of`. No caller sees it.
pub(super) struct Permit {
    pub(super) of: LockKey,
    pub(super) owner: Owner,
    pub(super) hash: u64,
}

/// None of these is inlined, so that the comparison before each of them is.
impl Rare {
    #[cold]
    pub(super) fn permit(&self) -> Option<&Permit> {
        match self {
            Self::Permit(permit) => Some(permit),
            Self::Invalid(_) => None,
        }
    }

    #[cold]
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Invalid(_) => "",
            Self::Permit(permit) => permit.of.as_str(),
        }
    }

    #[cold]
    pub(super) fn validate(&self) -> Result<(), InvalidKey> {
        match self {
            Self::Invalid(why) => Err(why.clone()),
            Self::Permit(_) => Ok(()),
        }
    }

    #[cold]
    pub(super) fn hash_code(&self) -> u64 {
        match self {
            Self::Invalid(_) => 0,
            Self::Permit(permit) => permit.hash,
        }
    }

    #[cold]
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Invalid(this), Self::Invalid(that)) => this == that,
            (Self::Permit(this), Self::Permit(that)) => {
                this.owner == that.owner && this.of == that.of
            }
            _ => false,
        }
    }
}
