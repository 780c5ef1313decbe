//! The owners that share a lease, besides the first one.

use hashbrown::HashTable;

use super::OwnerHolds;
use crate::Owner;

/// By owner, which each grant contains. A map would store it twice, and thousands of owners can share a lease.
#[derive(Debug, Default)]
pub(in crate::lock::lane) struct Readers(HashTable<OwnerHolds>);

impl Readers {
    pub(in crate::lock::lane) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::lock::lane) fn get_mut(&mut self, owner: Owner) -> Option<&mut OwnerHolds> {
        self.0.find_mut(hash(owner), |it| it.grant.owner() == owner)
    }

    pub(in crate::lock::lane) fn insert(&mut self, held: OwnerHolds) {
        let hash_of = |it: &OwnerHolds| hash(it.grant.owner());
        self.0.insert_unique(hash_of(&held), held, hash_of);
    }

    pub(in crate::lock::lane) fn remove(&mut self, owner: Owner) -> Option<OwnerHolds> {
        let found = (self.0).find_entry(hash(owner), |it| it.grant.owner() == owner);
        Some(found.ok()?.remove().0)
    }

    /// Removes any of them.
    pub(in crate::lock::lane) fn pop(&mut self) -> Option<OwnerHolds> {
        let owner = self.iter().next()?.grant.owner();
        self.remove(owner)
    }

    pub(in crate::lock::lane) fn iter(&self) -> impl Iterator<Item = &OwnerHolds> {
        self.0.iter()
    }

    pub(in crate::lock::lane) fn iter_mut(&mut self) -> impl Iterator<Item = &mut OwnerHolds> {
        self.0.iter_mut()
    }
}

/// The numbers of owners are consecutive. The multiplication distributes them over all bits, of which the table uses the
/// high and the low ones.
fn hash(owner: Owner) -> u64 {
    owner.number().wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
