//! The reasons why a key cannot be locked.

use std::borrow::Cow;

use super::lock_keys::LockKeys;

/// Why a key cannot be locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The key has no characters, or no parts.
    #[error("the lock key is empty")]
    Empty,
    /// One of the parts has no characters.
    #[error("part {index} of the lock key is empty")]
    EmptyPart {
        /// Which part, counted from 0.
        index: usize,
    },
    /// An acquire names no key at all.
    #[error("no lock key was given")]
    NoKeys,
    /// An acquire names more keys than [`LockKeys::MAX`].
    #[error("{count} lock keys were given, at most {max} are allowed", max = LockKeys::MAX)]
    TooMany {
        /// How many different keys there were.
        count: usize,
    },
    /// The request lacks what the key is made of.
    #[error("the request has no {what}")]
    Missing {
        /// What was looked for, such as ``header `x-account` ``.
        what: Cow<'static, str>,
    },
    /// The request has more than one of what the key is made of, and only one of them could be
    /// locked.
    #[error("the request has more than one {what}")]
    Ambiguous {
        /// What was found, such as ``query parameter `account` ``.
        what: Cow<'static, str>,
    },
    /// The request has what the key is made of, in a form that cannot be read.
    #[error("the {what} of the request cannot be decoded")]
    Undecodable {
        /// What was looked at, such as ``query parameter `account` ``.
        what: Cow<'static, str>,
    },
}

impl InvalidKey {
    pub(crate) fn missing(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Missing { what: what.into() }
    }

    pub(crate) fn undecodable(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Undecodable { what: what.into() }
    }

    pub(crate) fn ambiguous(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Ambiguous { what: what.into() }
    }
}
