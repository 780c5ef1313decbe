//! A value that a request must have exactly once.

use std::fmt;

use crate::{InvalidKey, LockKey, LockKeys};

/// The place and the name of the value, as a client reads them: ``header `x-account` ``.
#[derive(Clone, Copy)]
pub(super) struct ValueSource<'n> {
    pub(super) place: &'static str,
    pub(super) name: &'n str,
}

impl ValueSource<'_> {
    /// Returns the only value.
    pub(super) fn only<V>(self, mut values: impl Iterator<Item = V>) -> Result<V, InvalidKey> {
        let missing = || InvalidKey::Missing(self.to_string().into());
        let value = values.next().ok_or_else(missing)?;
        match values.next() {
            Some(_) => Err(InvalidKey::Ambiguous(self.to_string().into())),
            None => Ok(value),
        }
    }

    /// Returns the key of the kind and the value. By default, the kind is the name.
    pub(super) fn key(
        self,
        kind: Option<&str>,
        value: &[u8],
    ) -> Result<Option<LockKeys>, InvalidKey> {
        if value.is_empty() {
            return Err(InvalidKey::EmptyValue(self.to_string().into()));
        }
        let parts = [kind.unwrap_or(self.name).as_bytes(), value];
        Ok(Some(LockKey::from_parts(parts).into()))
    }
}

impl fmt::Display for ValueSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.place, self.name)
    }
}
