//! The queue of one key's waiters, in memory.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::LeaseId;

/// The time within which a notified waiter must confirm a transfer.
const CONFIRM: Duration = Duration::from_millis(1500);
/// The time within which a waiter that polls must confirm a transfer.
const POLLED: Duration = Duration::from_millis(300);
/// The time after which a waiter that did not refresh its place is passed over.
const ALIVE: Duration = Duration::from_secs(3);

/// The leases that wait for one key, in the order of their service.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    places: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    lease: LeaseId,
    listens: bool,
    until: Instant,
}

/// The waiter that is served next, which has left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) lease: LeaseId,
    /// The TTL of its lease until it confirms.
    pub(crate) ttl: Duration,
}

impl Waiters {
    /// Gives the last place to a lease, or refreshes the place that it has.
    pub(crate) fn enter(&mut self, lease: LeaseId, listens: bool, now: Instant) {
        let until = now + ALIVE;
        let known = self.places.iter_mut().find(|place| place.lease == lease);
        match known {
            Some(place) => (place.listens, place.until) = (listens, until),
            None => self.places.push_back(Place {
                lease,
                listens,
                until,
            }),
        }
    }

    pub(crate) fn forget(&mut self, lease: LeaseId) {
        self.places.retain(|place| place.lease != lease);
    }

    /// Drops the waiters that did not refresh their places. Returns how many are left.
    pub(crate) fn prune(&mut self, now: Instant) -> usize {
        self.places.retain(|place| place.until > now);
        self.places.len()
    }

    /// Removes and returns the first waiter: `own`, a waiter that polls, or one that `notify` reaches. A waiter
    /// that it does not reach keeps its place.
    pub(crate) fn next(
        &mut self,
        own: Option<LeaseId>,
        now: Instant,
        notify: impl Fn(LeaseId) -> bool,
    ) -> Option<Next> {
        self.prune(now);
        let is_reached =
            |place: &Place| own == Some(place.lease) || !place.listens || notify(place.lease);
        let first = self.places.iter().position(is_reached)?;
        let place = self.places.remove(first)?;
        Some(Next {
            lease: place.lease,
            ttl: if place.listens { CONFIRM } else { POLLED },
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn lease(number: u64) -> LeaseId {
        LeaseId::new(Uuid::nil(), number)
    }

    fn waiters(count: u64, now: Instant) -> Waiters {
        let mut waiters = Waiters::default();
        (1..=count).for_each(|number| waiters.enter(lease(number), true, now));
        waiters
    }

    #[test]
    fn unreachable_waiter_keeps_place() {
        let now = Instant::now();
        let mut waiters = waiters(3, now);
        let next = waiters.next(None, now, |it| it != lease(1)).unwrap();
        assert_eq!((next.lease, next.ttl), (lease(2), CONFIRM));
        assert_eq!(waiters.next(None, now, |_| true).unwrap().lease, lease(1));
    }

    #[test]
    fn refreshed_waiter_keeps_place_and_may_poll() {
        let now = Instant::now();
        let mut waiters = waiters(2, now);
        waiters.enter(lease(1), false, now + ALIVE / 2);
        assert_eq!(waiters.prune(now + ALIVE), 1);
        let next = waiters.next(None, now + ALIVE, |_| false).unwrap();
        assert_eq!((next.lease, next.ttl), (lease(1), POLLED));
    }

    #[test]
    fn own_lease_is_served_without_notification() {
        let now = Instant::now();
        let mut waiters = waiters(2, now);
        waiters.forget(lease(1));
        let next = waiters.next(Some(lease(2)), now, |_| panic!("it asks itself"));
        assert_eq!(next.unwrap().lease, lease(2));
        assert!(waiters.next(None, now, |_| true).is_none());
    }
}
