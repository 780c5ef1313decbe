//! Reads of all lanes, one shard at a time.

use super::{Lanes, SHARDS, lock, shard_of};
use crate::LockKey;
use crate::lock::lane::Lane;

impl Lanes {
    /// Reads each lane, one shard at a time. A lane that enters or leaves in between may be missed.
    pub(in crate::lock) fn inspect_all(&self, mut look: impl FnMut(&LockKey, &Lane)) {
        (0..SHARDS).for_each(|shard| self.inspect_shard(shard, &mut look));
    }

    /// Reads each lane of a permit of `key`.
    pub(in crate::lock) fn inspect_permits(
        &self,
        key: &LockKey,
        mut look: impl FnMut(&LockKey, &Lane),
    ) {
        self.inspect_shard(shard_of(key.hash_code()), |of, lane| {
            if of.is_permit_of(key) {
                look(of, lane);
            }
        });
    }

    /// Reads each lane of a shard.
    pub(in crate::lock) fn inspect_shard(
        &self,
        shard: usize,
        mut look: impl FnMut(&LockKey, &Lane),
    ) {
        for slot in &lock(&self.shards[shard]).lanes {
            look(&slot.key, &slot.lane);
        }
    }
}
