//! The queue of a key: its places, transfers to the first of them, and the turns of the clients outside.
//!
//! `tests/redis/queue` checks the scripts themselves: the order of processes (`random`, `rules`, `pollers`) and the
//! turns of clients outside the queue (`rules`, `single`, `random`).

use tower_lock::backend::{LeaseId, Mode};

use super::{Begun, How, Item, Outcome, Store, Transfer};
use crate::queue::{Asks, Next, POLLED, Place, TURN};
use crate::time::{MS, Time};

/// Whether the queue of the store has no room, not even to refresh a place.
fn is_full(now: Time) -> bool {
    now / MS % 64 == 7
}

/// The result of a look at the queue of a free key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    Nothing,
    /// The caller is next.
    Own,
    Transferred,
    /// The turn of the clients outside has begun.
    LeftToOthers,
}

impl Store {
    /// Others than the holder that wait: in the queue, or without one those that watch, and the clients outside.
    pub(super) fn waiting(&mut self, key: usize, now: Time) -> u32 {
        let outside = self.outside(key).len();
        if self.has_queue {
            let queued = self.queued(key, now).len();
            return u32::try_from(queued + outside).unwrap_or(u32::MAX);
        }
        self.watching(key) + u32::try_from(outside).unwrap_or(u32::MAX)
    }

    /// The live places in the queue. They entered it at times of the simulation.
    pub fn queued(&self, key: usize, now: Time) -> Vec<Place> {
        let places = self.places(key, now).into_iter();
        places.map(|(place, _)| place).collect()
    }

    /// The live places, each with `true` if a release does not pass it over.
    pub fn places(&self, key: usize, now: Time) -> Vec<(Place, bool)> {
        let clock = self.clock(now);
        let queue = self.queues.get(&key);
        let live = queue.into_iter().flat_map(|queue| queue.live(clock));
        live.map(|(place, is_awake)| {
            let mut place = *place;
            place.entered -= self.steps;
            (
                place,
                is_awake && (!place.listens || self.hears(key, place.manager)),
            )
        })
        .collect()
    }

    pub(super) fn enter(&mut self, item: &Item, lease: LeaseId, now: Time) -> Option<Time> {
        let clock = self.clock(now);
        let manager = self.manager_of(lease);
        let queue = self.queues.entry(item.key).or_default();
        let asks = Asks {
            mode: item.mode,
            limit: item.limit,
        };
        queue.enter((lease, asks), manager, item.listens, clock)
    }

    /// Returns `true` if a shared lease or a permit has to wait for others in the queue before it.
    pub(super) fn is_wanted(&mut self, item: &Item, own: Option<LeaseId>, now: Time) -> bool {
        let (key, mode) = (item.key, item.mode);
        let clock = self.clock(now);
        let outside_listens = !self.outside(key).is_empty();
        let queue = self.queues.get_mut(&key);
        queue.is_some_and(|queue| queue.is_wanted(clock, outside_listens, mode, own))
    }

    /// Returns `true` if others wait for the end of a lease that is renewed. The clients outside get a place.
    pub(super) fn renewal_is_wanted(&mut self, item: &Item, now: Time) -> bool {
        let key = item.key;
        if self.has_queue && !self.outside(key).is_empty() {
            self.queues.entry(key).or_default().enter_outside();
        }
        self.is_wanted(item, None, now)
    }

    /// Returns `true` if a lease may join those that hold the key.
    fn joins(&mut self, item: &Item, lease: LeaseId, now: Time) -> bool {
        item.mode != Mode::Exclusive
            && self.mode(item.key, now) == Some(item.mode)
            && self.full(item, now).is_none()
            && !self.is_wanted(item, Some(lease), now)
    }

    pub(super) fn manager_of(&self, lease: LeaseId) -> usize {
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
        let left = self.left(key, now);
        let mut is_next = self.holds(key, lease, now);
        let mut joins = self.joins(item, lease, now);
        let (mut poll_after, mut turn) = (None, None);
        if let Some(ttl) = left.filter(|_| !is_next && !joins && is_full(now)) {
            return Outcome::Busy { ttl };
        }
        if !is_next && !joins {
            poll_after = self.enter(item, lease, now);
            let clock = self.clock(now);
            let queue = self.queues.entry(key).or_default();
            if left.is_some() {
                // The turn was used.
                queue.end_turn();
            } else {
                turn = queue.turn(clock);
            }
            if left.is_none() && turn.is_none() {
                match self.transfer(key, Some(lease), now) {
                    Served::Own => is_next = true,
                    Served::LeftToOthers => {
                        self.published.push(key);
                        turn = Some(TURN);
                    }
                    Served::Transferred => joins = self.joins(item, lease, now),
                    Served::Nothing => {}
                }
            }
        }
        if is_next || joins {
            let how = if joins { How::Beside } else { How::Contended };
            let entered = self.leave_queue(key, lease);
            let outcome = self.grant(item, lease, (how, entered), sent, now);
            self.admit(key, None, now);
            return outcome;
        }
        let beside = self.mode(key, now) == Some(item.mode);
        let room = self.full(item, now).filter(|_| beside);
        let ttl = turn.or(room).or(self.left(key, now)).unwrap_or(0);
        let queued = u32::try_from(self.queued(key, now).len()).unwrap_or(u32::MAX);
        Outcome::Waiting {
            ttl,
            queued,
            poll_after,
        }
    }

    /// Ends the lease of a key and serves the first waiter.
    pub(super) fn free(&mut self, key: usize, now: Time) -> Outcome {
        self.bodies.remove(&key);
        let served = self.transfer(key, None, now);
        if served == Served::Transferred {
            return Outcome::Transferred;
        }
        self.published.push(key);
        if served == Served::Nothing && self.has_queue && !self.outside(key).is_empty() {
            let clock = self.clock(now);
            self.queues.entry(key).or_default().begin_turn(clock);
            self.turn_begins(key);
            return Outcome::LeftToOthers;
        }
        match served {
            Served::LeftToOthers => Outcome::LeftToOthers,
            _ => Outcome::Released { watchers: 0 },
        }
    }

    fn turn_begins(&mut self, key: usize) {
        self.begun.push(Begun {
            key,
            manager: None,
            transferred: None,
            how: How::Transferred,
            mode: Mode::Exclusive,
            limit: 0,
            held: 1,
            entered: None,
        });
    }

    /// Removes a lease from the queue. Returns when its place entered.
    fn leave_queue(&mut self, key: usize, lease: LeaseId) -> Option<Time> {
        let place = self.queues.entry(key).or_default().leave(lease);
        place.map(|place| place.entered - self.steps)
    }

    /// Transfers a free key as `serve`, and then to the waiters that may share it.
    fn transfer(&mut self, key: usize, own: Option<LeaseId>, now: Time) -> Served {
        let served = self.serve(key, own, None, now);
        if served == Served::Transferred {
            self.admit(key, own, now);
        }
        served
    }

    /// Transfers a key that several leases can hold to the waiters before the first one that does not fit, and before
    /// `own`.
    pub(super) fn admit(&mut self, key: usize, own: Option<LeaseId>, now: Time) {
        while let Some(mode) = self.mode(key, now).filter(|mode| *mode != Mode::Exclusive)
            && self.serve(key, own, Some(mode), now) == Served::Transferred
        {}
    }

    /// Transfers a free key to the first waiter that can be reached, unless the clients outside are next. The caller
    /// serves `own`. `beside`: leases of this mode hold the key.
    fn serve(
        &mut self,
        key: usize,
        own: Option<LeaseId>,
        beside: Option<Mode>,
        now: Time,
    ) -> Served {
        let held = self.holders(key, now).len();
        let clock = self.clock(now);
        let outside_listens = !self.outside(key).is_empty();
        let watchers = self.listening(key);
        let Some(queue) = self.queues.get_mut(&key) else {
            return Served::Nothing;
        };
        let next = queue.next(
            clock,
            outside_listens,
            beside.map(|mode| (mode, held)),
            |place| own == Some(place.lease) || !place.listens || watchers.contains(&place.manager),
        );
        let first = match next {
            None => return Served::Nothing,
            Some(Next::Outside) => {
                self.turn_begins(key);
                return Served::LeftToOthers;
            }
            Some(Next::Place(first)) => first,
        };
        if own == Some(first.lease) {
            return Served::Own;
        }
        if outside_listens && beside.is_none() {
            queue.enter_outside();
        }
        queue.leave(first.lease);
        let lease = first.lease;
        let ttl = match first.listens {
            true => self.transfer_ttl,
            false => POLLED,
        };
        self.hold(key, (lease, first.mode), ttl, now);
        let held = self.holders(key, now).len();
        self.begun.push(Begun {
            key,
            manager: Some(first.manager),
            transferred: Some(lease),
            // A permit passes those that no message reaches, or that sleep.
            how: match beside {
                Some(Mode::Shared) => How::Beside,
                _ => How::Transferred,
            },
            mode: first.mode,
            limit: first.limit,
            held,
            entered: Some(first.entered - self.steps),
        });
        if let Some(record) = self.records.get_mut(&lease) {
            record.longest = record.longest.max(now + ttl);
            record.limit = first.limit;
        }
        self.transfers.push(Transfer {
            key,
            lease,
            manager: first.manager,
        });
        Served::Transferred
    }

    /// Returns the messages of the last transfers.
    pub fn take_transfers(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Returns the keys whose last releases have to be published.
    pub fn take_published(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.published)
    }

    /// Returns the turns that have begun.
    pub fn take_begun(&mut self) -> Vec<Begun> {
        std::mem::take(&mut self.begun)
    }
}
