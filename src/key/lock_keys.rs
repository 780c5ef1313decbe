//! The keys of one acquire.

use std::fmt;

use super::invalid::{InvalidKey, MAX_KEYS};
use super::lock_key::LockKey;
use crate::Owner;
use crate::mode::Mode;

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
///
/// Each key is locked exclusively, unless it was added by [`shared`](Self::shared):
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::Error> {
/// use tower_lock::{LockKeys, LockManager};
///
/// let locks = LockManager::in_memory();
/// let keys = LockKeys::new().shared("prices").exclusive("order:42");
/// let guard = locks.acquire(keys).await?;
/// assert!(locks.acquire("prices").shared().no_wait().await.is_ok());
/// assert!(locks.acquire("order:42").shared().no_wait().await.is_err());
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Default, Clone, PartialEq, Eq)]
pub struct LockKeys {
    keys: Keys,
    /// A bit for each of the first keys, in their order, which is set if the key is locked shared.
    shared: u64,
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

    /// Creates an empty list, to which [`shared`](Self::shared) and [`exclusive`](Self::exclusive) add keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn of(keys: Keys) -> Self {
        Self { keys, shared: 0 }
    }

    /// Adds a key that is locked [shared](crate::manager::Acquire::shared). A key that was added as exclusive stays so.
    #[must_use]
    pub fn shared(self, key: impl Into<LockKey>) -> Self {
        self.with(key.into(), Mode::Shared)
    }

    /// Adds a key that is locked exclusively, also if it was added as shared.
    #[must_use]
    pub fn exclusive(self, key: impl Into<LockKey>) -> Self {
        self.with(key.into(), Mode::Exclusive)
    }

    fn with(mut self, key: LockKey, mode: Mode) -> Self {
        let mut keys = match self.keys {
            Keys::One(key) => vec![key],
            Keys::Many(keys) => keys,
        };
        match keys.binary_search(&key) {
            Ok(at) if mode == Mode::Exclusive => self.shared &= !bit(at),
            Ok(_) => {}
            Err(at) => {
                keys.insert(at, key);
                let before = bit(at).wrapping_sub(1);
                self.shared = self.shared & before | (self.shared & !before) << 1;
                if mode == Mode::Shared {
                    self.shared |= bit(at);
                }
            }
        }
        self.keys = Keys::of(keys);
        self
    }

    /// Replaces each key by that of the lane in which `owner` acquires a permit of it.
    #[inline(never)]
    pub(crate) fn make_permits_of(&mut self, owner: Owner) {
        let keys = match &mut self.keys {
            Keys::One(key) => std::slice::from_mut(key),
            Keys::Many(keys) => keys,
        };
        for key in keys {
            *key = key.permit_of(owner);
        }
    }

    /// Locks each key shared.
    pub(crate) fn share(&mut self) {
        self.shared = u64::MAX;
    }

    /// Returns how the key at this index is locked.
    pub(crate) fn mode(&self, index: usize) -> Mode {
        match self.any_shared() && self.shared & bit(index) != 0 {
            true => Mode::Shared,
            false => Mode::Exclusive,
        }
    }

    /// Returns `true` if one of the keys is locked shared.
    pub(crate) fn any_shared(&self) -> bool {
        self.shared != 0
    }

    /// Returns `true` if each of the keys is locked shared.
    pub(crate) fn all_shared(&self) -> bool {
        (0..self.as_slice().len()).all(|at| self.mode(at) == Mode::Shared)
    }

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
        let shared = self.shared;
        Self { keys, shared }
    }

    /// Checks that each key can be locked, and that their number is within bounds.
    pub(crate) fn validate(&self) -> Result<(), InvalidKey> {
        match &self.keys {
            Keys::One(key) => key.validate(),
            Keys::Many(keys) if keys.is_empty() => Err(InvalidKey::NoKeys),
            Keys::Many(keys) if keys.len() > Self::MAX => Err(InvalidKey::TooMany(keys.len())),
            Keys::Many(keys) => keys.iter().try_for_each(LockKey::validate),
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
        Self::of(Keys::of(keys))
    }
}

impl Keys {
    fn of(keys: Vec<LockKey>) -> Self {
        match <[LockKey; 1]>::try_from(keys) {
            Ok([key]) => Self::One(key),
            Err(keys) => Self::Many(keys),
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

/// Returns the bit of a key, or none if there are too many.
fn bit(index: usize) -> u64 {
    u32::try_from(index)
        .ok()
        .and_then(|at| 1_u64.checked_shl(at))
        .unwrap_or(0)
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

impl<K: Into<LockKey>> From<K> for LockKeys {
    fn from(key: K) -> Self {
        Self::of(Keys::One(key.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_keeps_its_mode_in_every_order() {
        let modes = |keys: &LockKeys| -> Vec<_> {
            let all = keys.as_slice().iter().enumerate();
            all.map(|(at, key)| (key.as_str().to_owned(), keys.mode(at)))
                .collect()
        };
        let expected = [
            ("a".to_owned(), Mode::Shared),
            ("b".to_owned(), Mode::Exclusive),
            ("c".to_owned(), Mode::Shared),
        ];
        let keys = LockKeys::new().shared("c").exclusive("b").shared("a");
        assert_eq!(modes(&keys), expected);
        let keys = LockKeys::new().shared("a").shared("b").shared("c");
        assert_eq!(modes(&keys.exclusive("b").shared("b")), expected);
        let many = (0..70).fold(LockKeys::new(), |keys, n| keys.shared(n.to_string()));
        assert_eq!(many.validate(), Err(InvalidKey::TooMany(70)));
    }

    #[test]
    fn empty_and_too_long_lists_are_rejected_by_name() {
        assert_eq!(
            LockKeys::from(Vec::<LockKey>::new()).validate(),
            Err(InvalidKey::NoKeys)
        );
        let many: LockKeys = (0..17).map(|n| n.to_string()).collect();
        assert_eq!(many.validate(), Err(InvalidKey::TooMany(17)));
        let same: LockKeys = (0..17).map(|_| "same").collect();
        assert_eq!(same.as_slice().len(), 1);
    }
}
