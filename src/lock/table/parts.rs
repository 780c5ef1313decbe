//! Reads of all lanes, one shard or a part of it at a time.

use super::{Lanes, SHARDS, shard_of};
use crate::LockKey;
use crate::lock::lane::Lane;

/// The number of buckets of a part. A request waits at most while a part is read.
#[cfg(feature = "dashboard")]
const PART: usize = 256;

impl Lanes {
    /// Reads each lane, one shard at a time. A lane that enters or leaves in between may be missed.
    pub(crate) fn inspect_all(&self, mut check: impl FnMut(&LockKey, &Lane)) {
        (0..SHARDS).for_each(|shard| self.inspect_shard(shard, &mut check));
    }

    /// Returns the keys of all lanes.
    pub(crate) fn keys(&self) -> Vec<LockKey> {
        let mut keys = Vec::new();
        self.inspect_all(|key, _| keys.push(key.clone()));
        keys
    }

    /// Reads each lane of a permit of `key`.
    pub(crate) fn inspect_permits(&self, key: &LockKey, mut check: impl FnMut(&LockKey, &Lane)) {
        self.inspect_shard(shard_of(key.hash_code()), |of, lane| {
            if of.is_permit_of(key) {
                check(of, lane);
            }
        });
    }

    /// Reads each lane of a shard.
    pub(crate) fn inspect_shard(&self, shard: usize, mut check: impl FnMut(&LockKey, &Lane)) {
        for slot in &self.shards[shard].lock().lanes {
            check(&slot.key, &slot.lane);
        }
    }

    /// Reads the lanes of the part of a shard that begins at this bucket, and returns where the next part begins. A lane
    /// that its table moves in between may be read twice or missed.
    #[cfg(feature = "dashboard")]
    pub(crate) fn inspect_part(
        &self,
        shard: usize,
        start: usize,
        mut check: impl FnMut(&LockKey, &Lane),
    ) -> Option<usize> {
        let lanes = &self.shards[shard].lock().lanes;
        let end = lanes.num_buckets().min(start + PART);
        let slots = (start..end).filter_map(|bucket| lanes.get_bucket(bucket));
        slots.for_each(|slot| check(&slot.key, &slot.lane));
        (end < lanes.num_buckets()).then_some(end)
    }
}
