//! The queue of one key's waiters, in memory.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{LeaseId, Mode};

/// The time within which a notified waiter must confirm a transfer.
const CONFIRM: Duration = Duration::from_millis(1500);
/// The time within which a waiter that polls must confirm a transfer.
const POLLED: Duration = Duration::from_millis(300);
/// The time after which a waiter that did not refresh its place is passed over.
const ALIVE: Duration = Duration::from_secs(3);

/// The leases that wait for one key, in the order of their service.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiters: VecDeque<Waiter>,
    /// The managers outside the queue with an exclusive lease that waits, as nodes of a quorum know them.
    intents: Vec<Intent>,
}

#[derive(Debug)]
struct Intent {
    manager: Uuid,
    until: Instant,
}

#[derive(Debug)]
struct Waiter {
    place: Place,
    until: Instant,
}

/// The place of a lease, and how it will hold the key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) lease: LeaseId,
    pub(crate) mode: Mode,
    pub(crate) limit: Option<NonZeroU16>,
    pub(crate) listens: bool,
}

impl Place {
    pub(crate) fn exclusive(lease: LeaseId, listens: bool) -> Self {
        Self {
            lease,
            mode: Mode::Exclusive,
            limit: None,
            listens,
        }
    }
}

/// The waiter that is served next, which has left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) lease: LeaseId,
    pub(crate) mode: Mode,
    /// The TTL of its lease until it confirms.
    pub(crate) ttl: Duration,
}

impl Waiters {
    /// Gives the last place to a lease, or refreshes the place that it has.
    pub(crate) fn enter(&mut self, place: Place, now: Instant) {
        let until = now + ALIVE;
        let waiter = Waiter { place, until };
        let mut waiters = self.waiters.iter_mut();
        match waiters.find(|known| known.place.lease == place.lease) {
            Some(known) => *known = waiter,
            None => self.waiters.push_back(waiter),
        }
    }

    /// Records that an exclusive lease waits outside the queue.
    pub(crate) fn announce(&mut self, manager: Uuid, until: Instant) {
        self.withdraw(manager);
        self.intents.push(Intent { manager, until });
    }

    pub(crate) fn withdraw(&mut self, manager: Uuid) {
        self.intents.retain(|intent| intent.manager != manager);
    }

    /// Returns when the last exclusive lease of another manager that waits outside the queue stops waiting.
    pub(crate) fn last_intent(&self, manager: Uuid, now: Instant) -> Option<Instant> {
        let others = self.intents.iter().filter(|it| it.manager != manager);
        others.map(|it| it.until).max().filter(|until| *until > now)
    }

    /// Returns `true` if a lease of this mode has to wait for those before `lease`, or for all if that is not in the
    /// queue. Shared leases do not wait for each other.
    pub(crate) fn precede(&mut self, lease: LeaseId, mode: Mode, now: Instant) -> bool {
        self.prune(now);
        let mut before = (self.waiters.iter()).take_while(|waiter| waiter.place.lease != lease);
        before.any(|waiter| mode != Mode::Shared || waiter.place.mode != Mode::Shared)
    }

    /// Returns `true` if a lease waits that is not shared.
    pub(crate) fn has_writer(&mut self, now: Instant) -> bool {
        self.prune(now);
        let mut waiters = self.waiters.iter();
        !self.intents.is_empty() || waiters.any(|waiter| waiter.place.mode != Mode::Shared)
    }

    pub(crate) fn forget(&mut self, lease: LeaseId) {
        self.waiters.retain(|waiter| waiter.place.lease != lease);
    }

    /// Drops the waiters that did not refresh their places. Returns how many are left.
    pub(crate) fn prune(&mut self, now: Instant) -> usize {
        self.waiters.retain(|waiter| waiter.until > now);
        self.intents.retain(|intent| intent.until > now);
        self.waiters.len() + self.intents.len()
    }

    /// Removes and returns the first waiter: `own`, a waiter that polls, or one that `notify` reaches. A waiter
    /// that it does not reach keeps its place. No waiter that does not fit beside the leases that hold the key is
    /// served, and none behind it.
    pub(crate) fn next(
        &mut self,
        own: Option<LeaseId>,
        fits: impl Fn(Mode, Option<NonZeroU16>) -> bool,
        now: Instant,
        notify: impl Fn(LeaseId) -> bool,
    ) -> Option<Next> {
        self.prune(now);
        let fits = |place: &Place| fits(place.mode, place.limit);
        let first = self.waiters.iter().position(|Waiter { place, .. }| {
            !fits(place) || own == Some(place.lease) || !place.listens || notify(place.lease)
        })?;
        if !fits(&self.waiters[first].place) {
            return None;
        }
        let place = self.waiters.remove(first)?.place;
        Some(Next {
            lease: place.lease,
            mode: place.mode,
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

    fn any(_: Mode, _: Option<NonZeroU16>) -> bool {
        true
    }

    fn waiters(count: u64, now: Instant) -> Waiters {
        let mut waiters = Waiters::default();
        (1..=count).for_each(|number| waiters.enter(Place::exclusive(lease(number), true), now));
        waiters
    }

    #[test]
    fn unreachable_waiter_keeps_place() {
        let now = Instant::now();
        let mut waiters = waiters(3, now);
        let next = waiters.next(None, any, now, |it| it != lease(1)).unwrap();
        assert_eq!((next.lease, next.ttl), (lease(2), CONFIRM));
        assert_eq!(
            waiters.next(None, any, now, |_| true).unwrap().lease,
            lease(1)
        );
    }

    #[test]
    fn refreshed_waiter_keeps_place_and_may_poll() {
        let now = Instant::now();
        let mut waiters = waiters(2, now);
        waiters.enter(Place::exclusive(lease(1), false), now + ALIVE / 2);
        assert_eq!(waiters.prune(now + ALIVE), 1);
        let next = waiters.next(None, any, now + ALIVE, |_| false).unwrap();
        assert_eq!((next.lease, next.ttl), (lease(1), POLLED));
    }

    #[test]
    fn own_lease_is_served_without_notification() {
        let now = Instant::now();
        let mut waiters = waiters(2, now);
        waiters.forget(lease(1));
        let next = waiters.next(Some(lease(2)), any, now, |_| panic!("it asks itself"));
        assert_eq!(next.unwrap().lease, lease(2));
        assert!(waiters.next(None, any, now, |_| true).is_none());
    }
}
