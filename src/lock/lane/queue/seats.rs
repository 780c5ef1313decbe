//! The bounds on the waiters of one manager, and of one key's permits, and the slots of the latter.
//!
//! Each permit has a lane of its own. Without slots, a process with many waiters has as many places in the queue of
//! the backend, whose commands get slower with each place. A slot is no part of the state of a lane: a loop that waits
//! for one for too long contends without it.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::LockKey;
use crate::key::KeyMap;
use crate::mutex::Mutex;

/// The seats of the waiters. A seat is a reference, so their count needs no memory of its own, and each acquire writes one
/// cache line.
#[derive(Debug)]
pub(crate) struct Seats {
    taken: Arc<Places>,
    limit: usize,
    /// The waiters for permits of each key: each has a lane of its own, so no lane counts them.
    of_permits: Mutex<KeyMap<Arc<PermitWaiters>>>,
}

/// The seat of one waiter until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    _of_manager: Arc<Places>,
    _of_permits: Option<Arc<PermitWaiters>>,
}

/// The waiters for permits of one key, each of which has a reference.
#[derive(Debug)]
struct PermitWaiters {
    /// The slots of their acquire loops. Never closed, and serves the loops in order.
    slots: Arc<Semaphore>,
}

/// The number of loops that contend at a time. With one, each grant would follow the reply to the command before.
const AT_A_TIME: usize = 4;

/// The alignment keeps the count on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Places;

impl Seats {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            taken: Arc::default(),
            limit,
            of_permits: Mutex::default(),
        }
    }

    /// Adds a seat among the waiters for permits of `key` to `seat`. Returns `None` if `limit` of them are taken.
    pub(crate) fn add_permit(&self, seat: Seat, key: &LockKey, limit: usize) -> Option<Seat> {
        let mut keys = self.of_permits.lock();
        let taken = keys.entry(key.stored().clone()).or_insert_with(|| {
            let slots = Arc::new(Semaphore::new(AT_A_TIME));
            Arc::new(PermitWaiters { slots })
        });
        if Arc::strong_count(taken) > limit {
            return None;
        }
        let _of_permits = Some(Arc::clone(taken));
        if keys.len() > 2 * self.taken() {
            // A loop can outlive its waiters.
            keys.retain(|_, it| Arc::strong_count(it) > 1 || Arc::strong_count(&it.slots) > 1);
        }
        Some(Seat {
            _of_permits,
            ..seat
        })
    }

    /// Returns the number of the waiters for permits of `key`.
    pub(crate) fn permit_waiters(&self, key: &LockKey) -> usize {
        let keys = self.of_permits.lock();
        let taken = keys.get(key.stored());
        taken.map_or(0, |taken| Arc::strong_count(taken) - 1)
    }

    /// Returns the slots to contend for permits of `key`, or `None` if it had no waiter for a while.
    pub(crate) fn slots(&self, key: &LockKey) -> Option<Arc<Semaphore>> {
        let keys = self.of_permits.lock();
        Some(Arc::clone(&keys.get(key.stored())?.slots))
    }

    /// Takes a seat. Returns `None` if all are taken.
    pub(crate) fn take(&self) -> Option<Seat> {
        loop {
            let seat = Seat {
                _of_manager: Arc::clone(&self.taken),
                _of_permits: None,
            };
            if self.taken() <= self.limit {
                return Some(seat);
            }
            drop(seat);
            // Concurrent calls may have exceeded the limit together. The last of them to return its seat finds it
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
        let slots = |key| seats.slots(&LockKey::new(key));
        let slot = slots("a").expect("two waiters").try_acquire_owned();
        assert_eq!(
            slots("a").expect("the same").available_permits(),
            AT_A_TIME - 1
        );
        drop((second, slot));
        assert!(take("a").is_some() && slots("c").is_none());
        drop(first);
        assert_eq!(seats.permit_waiters(&LockKey::new("a")), 0);
        assert_eq!(seats.taken(), 0);
    }

    #[test]
    fn slots_of_loops_count_after_their_waiters() {
        let seats = Seats::new(9);
        let key = |key: &str| {
            let owner = NonZeroU64::new(1).expect("not zero");
            LockKey::new(key).permit_of(Owner::new(Uuid::nil(), owner))
        };
        let take = |of: &str| {
            let seat = seats.take().expect("room");
            seats.add_permit(seat, &key(of), 9)
        };
        drop(take("a"));
        let slots = seats.slots(&key("a")).expect("its waiter has just left");
        let slot = slots.try_acquire_owned().expect("free");
        for number in 0..1_000 {
            drop(take(&number.to_string()));
        }
        drop(take("a"));
        let slots = seats.slots(&key("a")).expect("its waiter has just left");
        assert_eq!(slots.available_permits(), AT_A_TIME - 1);
        drop(slot);
        assert!(seats.of_permits.lock().len() < 100);
    }
}
