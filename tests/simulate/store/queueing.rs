//! The queue of a key: its places, and transfers to the first of them.
//!
//! The simulated store serves its places in order, and all its clients are in the queue. So `check_order` compares the
//! waiters of one process, which the engine serves. `tests/redis/queue` checks the scripts themselves: the order of
//! processes (`random`, `rules`, `pollers`) and the turns of clients outside the queue (`rules`, `single`, `random`).

use tower_lock::backend::LeaseId;

use super::{Item, Live, Outcome, Store, Transfer, has_room};
use crate::queue::{POLLED, Place};
use crate::time::{MS, Time};

/// Whether the queue of the store has no room, not even to refresh a place.
fn is_full(now: Time) -> bool {
    now / MS % 64 == 7
}

impl Store {
    /// The processes that wait: those in the queue, or without one those that watch.
    pub(super) fn waiting(&mut self, key: usize, now: Time) -> u32 {
        if self.has_queue {
            let queued = self.queued(key, now).len();
            return u32::try_from(queued).unwrap_or(u32::MAX);
        }
        self.watching(key)
    }

    /// The live places in the queue. They entered it at times of the simulation.
    pub fn queued(&self, key: usize, now: Time) -> Vec<Place> {
        let clock = self.clock(now);
        let queue = self.queues.get(&key);
        let live = queue.into_iter().flat_map(|queue| queue.live(clock));
        live.map(|place| {
            let mut place = *place;
            place.entered -= self.steps;
            place
        })
        .collect()
    }

    pub(super) fn enter(&mut self, item: &Item, lease: LeaseId, now: Time) -> Option<Time> {
        let clock = self.clock(now);
        let manager = self.manager_of(lease);
        let queue = self.queues.entry(item.key).or_default();
        queue.enter(lease, manager, item.listens, clock)
    }

    fn manager_of(&self, lease: LeaseId) -> usize {
        let mut of_same = self
            .records
            .iter()
            .filter(|(of, _)| of.manager() == lease.manager());
        of_same
            .next()
            .map_or(usize::MAX, |(_, record)| record.manager)
    }

    pub(super) fn contend(
        &mut self,
        item: &Item,
        lease: LeaseId,
        sent: Time,
        now: Time,
    ) -> Outcome {
        let key = item.key;
        let holder = self.holder(key, now);
        let mut is_first = holder.is_some_and(|(holder, _)| holder == lease);
        let mut poll_after = None;
        if let Some((_, ttl)) = holder.filter(|_| !is_first && is_full(now)) {
            return Outcome::Busy { ttl };
        }
        if !is_first {
            poll_after = self.enter(item, lease, now);
            if holder.is_none() {
                is_first = self.transfer(key, Some(lease), now);
            }
        }
        if is_first {
            self.queues.entry(key).or_default().leave(lease);
            let expires = self.clock(now) + item.ttl;
            self.live.insert(key, Live { lease, expires });
            self.promise(lease, item.ttl, sent, now);
            let counter = self.next_counters(key, lease, 1, now);
            return Outcome::Granted { counter };
        }
        let ttl = self.holder(key, now).map_or(0, |(_, ttl)| ttl);
        let queued = self.waiting(key, now);
        self.contended.insert(lease, sent);
        let last = self.counter.max(self.clock_counter(now) - 1);
        Outcome::Waiting {
            ttl,
            queued,
            poll_after,
            transfers: item.listens.then_some(last),
        }
    }

    /// Ends the lease of a key and serves the first waiter.
    pub(super) fn free(&mut self, key: usize, now: Time) -> Outcome {
        self.live.remove(&key);
        self.transfer(key, None, now);
        match self.live.contains_key(&key) {
            true => Outcome::Transferred,
            false => Outcome::Released { watchers: 0 },
        }
    }

    /// Transfers a free key to the first waiter that can be reached. Returns `true` if that is `own`, which
    /// the caller serves.
    fn transfer(&mut self, key: usize, own: Option<LeaseId>, now: Time) -> bool {
        let clock = self.clock(now);
        self.watching(key);
        let watchers = self.watchers.get(&key);
        let Some(queue) = self.queues.get_mut(&key) else {
            return false;
        };
        let first = queue.first(clock, |place| {
            let mut watchers = watchers.into_iter().flatten();
            own == Some(place.lease)
                || !place.listens
                || watchers.any(|(manager, _)| *manager == place.manager)
        });
        let Some(first) = first else { return false };
        if own == Some(first.lease) {
            return true;
        }
        queue.leave(first.lease);
        let lease = first.lease;
        let ttl = match first.listens {
            true => self.transfer_ttl,
            false => POLLED,
        };
        let expires = clock + ttl;
        self.live.insert(key, Live { lease, expires });
        if let Some(record) = self.records.get_mut(&lease) {
            record.longest = record.longest.max(now + ttl);
        }
        let counts = first.listens && has_room(now);
        let counter = counts.then(|| self.next_counters(key, lease, 1, now));
        // The message of this transfer is a grant, for the TTL counted from before the last attempt.
        if counter.is_some()
            && let Some(sent) = self.contended.get(&lease)
        {
            self.promise(lease, ttl, *sent, now);
        }
        self.transfers.push(Transfer {
            key,
            lease,
            manager: first.manager,
            counter,
        });
        false
    }

    /// Returns the messages of the last transfers.
    pub fn take_transfers(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }
}
