//! A map by key, with the hash that the key contains.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::lock_key::LockKey;

/// A map by key, with the hash that the key contains.
pub(crate) type KeyMap<V> = HashMap<LockKey, V, BuildHasherDefault<Prehashed>>;

#[derive(Debug, Default)]
pub(crate) struct Prehashed(u64);

impl Hasher for Prehashed {
    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "BUG: keys hash themselves as one u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
