//! The bound on the waiters of one manager.

use std::sync::Arc;

/// The places of the waiters. A place is a reference, so its count needs no memory of its own, and each
/// acquire writes one cache line.
#[derive(Debug)]
pub(super) struct Seats {
    taken: Arc<Line>,
    limit: usize,
}

/// The place of one waiter until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    _counted: Arc<Line>,
}

/// The alignment keeps the count on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Line;

impl Seats {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            taken: Arc::new(Line),
            limit,
        }
    }

    /// Takes a place. Returns `None` if all are taken.
    pub(super) fn take(&self) -> Option<Seat> {
        loop {
            let seat = Seat {
                _counted: Arc::clone(&self.taken),
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
    use super::*;

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
}
