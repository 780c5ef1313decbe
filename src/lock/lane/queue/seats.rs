//! The bounds on the waiters of one manager, and of one key's permits.

use std::sync::Arc;

use crate::LockKey;
use crate::key::KeyMap;
use crate::mutex::Mutex;

/// The places of the waiters. A place is a reference, so its count needs no memory of its own, and each
/// acquire writes one cache line.
#[derive(Debug)]
pub(in crate::lock) struct Seats {
    taken: Arc<Places>,
    limit: usize,
    /// The waiters for permits of each key: each has a lane of its own, so no lane counts them.
    of_permits: Mutex<KeyMap<Arc<Places>>>,
}

/// The place of one waiter until it is dropped.
#[derive(Debug)]
pub(in crate::lock) struct Seat {
    _of_manager: Arc<Places>,
    _of_permits: Option<Arc<Places>>,
}

/// The alignment keeps the count on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Places;

impl Seats {
    pub(in crate::lock) fn new(limit: usize) -> Self {
        Self {
            taken: Arc::default(),
            limit,
            of_permits: Mutex::default(),
        }
    }

    /// Adds a place among the waiters for permits of `key` to `seat`. Returns `None` if `limit` of them are taken.
    pub(in crate::lock) fn add_permit(
        &self,
        seat: Seat,
        key: &LockKey,
        limit: usize,
    ) -> Option<Seat> {
        let mut keys = self.of_permits.lock();
        let taken = keys.entry(key.stored().clone()).or_default();
        if Arc::strong_count(taken) > limit {
            return None;
        }
        let _of_permits = Some(Arc::clone(taken));
        if keys.len() > 2 * self.taken() {
            keys.retain(|_, taken| Arc::strong_count(taken) > 1);
        }
        Some(Seat {
            _of_permits,
            ..seat
        })
    }

    /// Returns the number of the waiters for permits of `key`.
    pub(in crate::lock) fn permit_waiters(&self, key: &LockKey) -> usize {
        let keys = self.of_permits.lock();
        let taken = keys.get(key.stored());
        taken.map_or(0, |taken| Arc::strong_count(taken) - 1)
    }

    /// Takes a place. Returns `None` if all are taken.
    pub(in crate::lock) fn take(&self) -> Option<Seat> {
        loop {
            let seat = Seat {
                _of_manager: Arc::clone(&self.taken),
                _of_permits: None,
            };
            if self.taken() <= self.limit {
                return Some(seat);
            }
            drop(seat);
            // Concurrent calls may have exceeded the limit together. The last of them to return its place finds it
            // free, so at least one of them takes it.
            if self.taken() >= self.limit {
                return None;
            }
        }
    }

    fn taken(&self) -> usize {
        Arc::strong_count(&self.taken) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use uuid::Uuid;

    use super::*;
    use crate::Owner;

    #[test]
    fn dropped_seat_is_free_again() {
        let seats = Seats::new(2);
        let first = seats.take();
        let second = seats.take();
        assert!(first.is_some() && second.is_some());
        assert!(seats.take().is_none() && seats.take().is_none());
        drop(first);
        assert!(seats.take().is_some());
    }

    #[test]
    fn permits_of_each_key_have_bound() {
        let seats = Seats::new(9);
        let owner = Owner::new(Uuid::nil(), NonZeroU64::MIN);
        let take = |key| {
            let seat = seats.take()?;
            seats.add_permit(seat, &LockKey::new(key).permit_of(owner), 2)
        };
        let (first, second) = (take("a"), take("a"));
        assert!(first.is_some() && take("a").is_none() && take("b").is_some());
        assert_eq!(seats.permit_waiters(&LockKey::new("a")), 2);
        assert_eq!(seats.taken(), 2);
        drop(second);
        assert!(take("a").is_some());
        drop(first);
        assert_eq!(seats.permit_waiters(&LockKey::new("a")), 0);
        assert_eq!(seats.taken(), 0);
    }
}
