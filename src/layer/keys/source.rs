//! A value that a request must have exactly once.

use std::fmt;

use crate::{InvalidKey, LockKey, LockKeys};

/// The kind and the name of the value, as a client reads them: ``header `x-account` ``.
#[derive(Clone, Copy)]
pub(super) struct ValueSource<'n> {
    pub(super) kind: &'static str,
    pub(super) name: &'n str,
}

impl ValueSource<'_> {
    /// Returns the only value.
    pub(super) fn only<V>(self, mut values: impl Iterator<Item = V>) -> Result<V, InvalidKey> {
        let missing = || InvalidKey::missing(self.to_string());
        let value = values.next().ok_or_else(missing)?;
        match values.next() {
            Some(_) => Err(InvalidKey::ambiguous(self.to_string())),
            None => Ok(value),
        }
    }

    /// Returns the key of the name and the value.
    pub(super) fn key(self, value: &[u8]) -> Result<Option<LockKeys>, InvalidKey> {
        if value.is_empty() {
            return Err(InvalidKey::empty_value(self.to_string()));
        }
        let parts = [self.name.as_bytes(), value];
        Ok(Some(LockKey::from_parts(parts).into()))
    }
}

impl fmt::Display for ValueSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.kind, self.name)
    }
}
