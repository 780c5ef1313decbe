//! The waiting leases of one key of the simulated store, in order.

use tower_lock::backend::LeaseId;

use crate::time::{MS, Time};

/// How long a lease lasts that was transferred to a waiter without messages.
pub const POLLED: Time = 300 * MS;

/// How long a place lasts without a refresh.
const ALIVE: Time = 3_000 * MS;

/// When a waiter without messages attempts again: after this for each place up to its own.
const STEP: Time = 3 * MS;

/// The longest time between two of its attempts.
const POLL: Time = 100 * MS;

fn pace(ahead: usize) -> Time {
    POLL.min(STEP * (Time::try_from(ahead).unwrap() + 1))
}

#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub lease: LeaseId,
    pub manager: usize,
    pub listens: bool,
    /// When it entered the queue, by the clock of the store.
    pub entered: Time,
    until: Time,
}

#[derive(Debug, Default)]
pub struct Queue(Vec<Place>);

impl Queue {
    /// Enters the queue at its end, or refreshes a place. `clock` is the time of the store. Returns the time until
    /// the next attempt of a waiter without messages.
    pub fn enter(
        &mut self,
        lease: LeaseId,
        manager: usize,
        listens: bool,
        clock: Time,
    ) -> Option<Time> {
        let known = self.0.iter().position(|place| place.lease == lease);
        let poll_after = (!listens).then(|| pace(known.unwrap_or(self.0.len())));
        let until = clock + ALIVE + poll_after.unwrap_or(0);
        if let Some(place) = self.0.iter_mut().find(|place| place.lease == lease) {
            (place.listens, place.until) = (listens, until);
        } else {
            self.0.push(Place {
                lease,
                manager,
                listens,
                entered: clock,
                until,
            });
        }
        poll_after
    }

    pub fn leave(&mut self, lease: LeaseId) {
        self.0.retain(|place| place.lease != lease);
    }

    /// Returns the first place that is alive and can be reached. An unreachable one keeps its place, and so does a
    /// sleeping one unless all others sleep.
    pub fn first(&mut self, clock: Time, reaches: impl Fn(&Place) -> bool) -> Option<Place> {
        self.0.retain(|place| place.until > clock);
        let sleeps = |(ahead, place): (usize, &Place)| {
            !place.listens && place.until - ALIVE > clock + pace(ahead)
        };
        let mut reached = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, place)| reaches(place));
        let asleep = reached.clone().next();
        let first = reached.find(|it| !sleeps(*it)).or(asleep);
        first.map(|(_, place)| *place)
    }

    /// The clock of the store steps. When a place was entered does not change.
    pub fn step(&mut self, step: Time) {
        for place in &mut self.0 {
            place.entered += step;
        }
    }

    pub fn live(&self, clock: Time) -> impl Iterator<Item = &Place> {
        self.0.iter().filter(move |place| place.until > clock)
    }
}
