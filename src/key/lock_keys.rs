//! The keys of one acquire.

use std::fmt;

use super::invalid::{InvalidKey, MAX_KEYS};
use super::lock_key::LockKey;

/// The keys of one acquire: sorted, without duplicates, acquired all or none.
///
/// Every acquire locks its keys in this order, so two acquires that share keys do not wait for each other in a
/// circle. There is at least one key, and there are at most [`LockKeys::MAX`]. Otherwise the acquire fails with
/// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey).
///
/// ```
/// use tower_lock::{LockKey, LockKeys};
///
/// let [alice, bob] = ["alice", "bob"].map(|id| LockKey::from_parts(["account", id]));
/// let keys = LockKeys::from([bob.clone(), alice.clone(), bob.clone()]);
/// assert_eq!(keys.as_slice(), [alice, bob]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LockKeys {
    keys: Keys,
}

#[derive(Clone, PartialEq, Eq)]
enum Keys {
    /// The usual case, without an allocation for the list.
    One(LockKey),
    /// None, or several in ascending order.
    Many(Vec<LockKey>),
}

impl LockKeys {
    /// The most keys of one acquire.
    pub const MAX: usize = MAX_KEYS;

    /// Returns the keys in the order in which they are locked.
    #[must_use]
    pub fn as_slice(&self) -> &[LockKey] {
        match &self.keys {
            Keys::One(key) => std::slice::from_ref(key),
            Keys::Many(keys) => keys,
        }
    }

    /// Moves the keys out and leaves none.
    pub(crate) fn take(&mut self) -> Self {
        let none = Keys::Many(Vec::new());
        let keys = std::mem::replace(&mut self.keys, none);
        Self { keys }
    }

    /// Checks that each key can be locked, and that their number is within bounds.
    ///
    /// # Errors
    ///
    /// Returns the first [`InvalidKey`].
    pub fn validate(&self) -> Result<(), InvalidKey> {
        match self.as_slice() {
            [] => Err(InvalidKey::NoKeys),
            keys if keys.len() > Self::MAX => Err(InvalidKey::TooMany { count: keys.len() }),
            keys => keys.iter().try_for_each(LockKey::validate),
        }
    }
}

impl fmt::Debug for LockKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl<K: Into<LockKey>> FromIterator<K> for LockKeys {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut keys: Vec<LockKey> = keys.into_iter().map(Into::into).collect();
        keys.sort_unstable();
        keys.dedup();
        let keys = match <[LockKey; 1]>::try_from(keys) {
            Ok([key]) => Keys::One(key),
            Err(keys) => Keys::Many(keys),
        };
        Self { keys }
    }
}

impl From<&LockKeys> for LockKeys {
    fn from(keys: &LockKeys) -> Self {
        keys.clone()
    }
}

impl<K: Into<LockKey>, const N: usize> From<[K; N]> for LockKeys {
    fn from(keys: [K; N]) -> Self {
        keys.into_iter().collect()
    }
}

impl<K: Into<LockKey>> From<Vec<K>> for LockKeys {
    fn from(keys: Vec<K>) -> Self {
        keys.into_iter().collect()
    }
}

macro_rules! one_key {
    ($($source:ty),*) => {$(
        impl From<$source> for LockKeys {
            fn from(key: $source) -> Self {
                Self { keys: Keys::One(key.into()) }
            }
        }
    )*};
}

one_key!(LockKey, &LockKey, &str, String, &String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_of_acquire_are_sorted_and_unique(names in prop::collection::vec("[a-d]{1,2}", 0..20)) {
            let keys: LockKeys = names.iter().collect();
            prop_assert!(keys.as_slice().windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(names.iter().all(|name| keys.as_slice().contains(&LockKey::new(name))));
        }
    }

    #[test]
    fn empty_and_too_long_lists_are_rejected_by_name() {
        assert_eq!(
            LockKeys::from(Vec::<LockKey>::new()).validate(),
            Err(InvalidKey::NoKeys)
        );
        let many: LockKeys = (0..17).map(|n| n.to_string()).collect();
        assert_eq!(many.validate(), Err(InvalidKey::TooMany { count: 17 }));
        let same: LockKeys = (0..17).map(|_| "same").collect();
        assert_eq!(same.as_slice().len(), 1);
    }
}
