//! The owners that share a lease, besides the first one.

use hashbrown::HashTable;

use crate::Owner;

/// The holds of one owner.
pub(in crate::lock::lane) trait Held {
    fn owner(&self) -> Owner;
}

/// By owner, which each grant contains. A map would store it twice, and thousands of owners can share a lease.
#[derive(Debug)]
pub(in crate::lock::lane) struct Readers<T>(HashTable<T>);

impl<T> Default for Readers<T> {
    fn default() -> Self {
        Self(HashTable::new())
    }
}

impl<T: Held> Readers<T> {
    pub(in crate::lock::lane) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::lock::lane) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::lock::lane) fn get_mut(&mut self, owner: Owner) -> Option<&mut T> {
        self.0.find_mut(hash(owner), |it| is_of(it, owner))
    }

    pub(in crate::lock::lane) fn insert(&mut self, held: T) {
        let hash_of = |it: &T| hash(it.owner());
        self.0.insert_unique(hash_of(&held), held, hash_of);
    }

    pub(in crate::lock::lane) fn remove(&mut self, owner: Owner) -> Option<T> {
        let found = self.0.find_entry(hash(owner), |it| is_of(it, owner));
        Some(found.ok()?.remove().0)
    }

    /// Removes any of them.
    pub(in crate::lock::lane) fn pop(&mut self) -> Option<T> {
        let owner = self.iter().next()?.owner();
        self.remove(owner)
    }

    pub(in crate::lock::lane) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    pub(in crate::lock::lane) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

fn is_of(held: &impl Held, owner: Owner) -> bool {
    held.owner() == owner
}

/// The numbers of owners are consecutive. The multiplication distributes them over all bits, of which the table uses the
/// high and the low ones.
fn hash(owner: Owner) -> u64 {
    owner.number().wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
