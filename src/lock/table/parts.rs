//! Reads of all lanes, one part of a shard at a time.

use std::hint::black_box;

use smallvec::SmallVec;

use super::{Lanes, SHARDS, lock, shard_of};
use crate::LockKey;
use crate::lock::lane::Lane;

/// The number of buckets that are read under one lock of a shard, so that a reader of all lanes delays no event.
const PART: usize = 128;

/// The place in a shard where a walk continues.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct Place {
    shard: usize,
    bucket: usize,
    /// The number of moves of the shard when the walk was there.
    moves: u64,
}

impl Place {
    pub(in crate::lock) fn start_of(shard: usize) -> Self {
        Self {
            shard,
            bucket: 0,
            moves: 0,
        }
    }
}

/// The result of reading a part of a shard.
pub(in crate::lock) enum Part {
    /// The next part begins at this place, or there is none.
    Read(Option<Place>),
    /// The lanes of the shard have moved, so it must be read from its start.
    Moved,
}

impl Lanes {
    /// Reads each lane into `state`, one part of a shard at a time. A lane that enters or leaves in between may be missed.
    pub(in crate::lock) fn fold<T: Clone>(
        &self,
        mut state: T,
        mut look: impl FnMut(&mut T, &LockKey, &Lane),
    ) -> T {
        for shard in 0..SHARDS {
            state = self.fold_shard(shard, state, &mut look);
        }
        state
    }

    /// Reads each lane into the state of its shard, as [`fold`](Self::fold).
    pub(in crate::lock) fn fold_shards<T: Clone>(
        &self,
        state: T,
        mut look: impl FnMut(&mut T, &LockKey, &Lane),
    ) -> impl Iterator<Item = T> {
        (0..SHARDS).map(move |shard| self.fold_shard(shard, state.clone(), &mut look))
    }

    /// Reads each lane of a permit of `key` into `state`, as [`fold`](Self::fold).
    pub(in crate::lock) fn fold_permits<T: Clone>(
        &self,
        key: &LockKey,
        state: T,
        mut look: impl FnMut(&mut T, &LockKey, &Lane),
    ) -> T {
        self.fold_shard(shard_of(key.hash_code()), state, |state, of, lane| {
            if of.is_permit_of(key) {
                look(state, of, lane);
            }
        })
    }

    fn fold_shard<T: Clone>(
        &self,
        shard: usize,
        mut state: T,
        mut look: impl FnMut(&mut T, &LockKey, &Lane),
    ) -> T {
        let before = state.clone();
        let mut place = Some(Place::start_of(shard));
        while let Some(at) = place {
            place = match self.inspect_part(at, |key, lane| look(&mut state, key, lane)) {
                Part::Read(next) => next,
                Part::Moved => {
                    state = before.clone();
                    Some(Place::start_of(shard))
                }
            };
        }
        state
    }

    /// Reads the lanes of the part of a shard that begins at `place`, unless the table has moved its lanes since the part
    /// before.
    pub(in crate::lock) fn inspect_part(
        &self,
        place: Place,
        mut look: impl FnMut(&LockKey, &Lane),
    ) -> Part {
        let shard = lock(&self.shards[place.shard]);
        let buckets = shard.lanes.num_buckets();
        if place.bucket > 0 && place.moves != shard.moves {
            return Part::Moved;
        }
        let end = buckets.min(place.bucket + PART);
        let slots = (place.bucket..end).filter_map(|bucket| shard.lanes.get_bucket(bucket));
        let slots: SmallVec<[_; PART]> = slots.collect();
        // The lanes are scattered in memory. In this short loop, the processor fetches many of them at a time.
        let holders = slots.iter().flat_map(|slot| slot.lane.holders().next());
        black_box(holders.map(|grant| grant.granted_at()).min());
        let lanes = slots.iter();
        lanes.for_each(|slot| look(&slot.key, &slot.lane));
        Part::Read((end < buckets).then_some(Place {
            bucket: end,
            moves: shard.moves,
            ..place
        }))
    }
}
