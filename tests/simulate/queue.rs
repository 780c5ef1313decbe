//! The waiting leases of one key of the simulated store, in order.

use tower_lock::backend::LeaseId;

use crate::time::{MS, Time};

/// How long a transferred lease lasts until it is confirmed.
pub const GRANT: Time = 1_500 * MS;

/// The same for a waiter without messages.
pub const POLLED: Time = 300 * MS;

/// How long a place lasts without a refresh.
const ALIVE: Time = 3_000 * MS;

#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub lease: LeaseId,
    pub manager: usize,
    pub listens: bool,
    until: Time,
}

#[derive(Debug, Default)]
pub struct Queue(Vec<Place>);

impl Queue {
    /// Enters the queue at its end, or refreshes a place. `clock` is the time of the store.
    pub fn enter(&mut self, lease: LeaseId, manager: usize, listens: bool, clock: Time) {
        let until = clock + ALIVE;
        if let Some(place) = self.0.iter_mut().find(|place| place.lease == lease) {
            (place.listens, place.until) = (listens, until);
        } else {
            self.0.push(Place {
                lease,
                manager,
                listens,
                until,
            });
        }
    }

    pub fn leave(&mut self, lease: LeaseId) {
        self.0.retain(|place| place.lease != lease);
    }

    /// Returns the first place that is alive and can be reached. An unreachable one keeps its place.
    pub fn first(&mut self, clock: Time, reaches: impl Fn(&Place) -> bool) -> Option<Place> {
        self.0.retain(|place| place.until > clock);
        self.0.iter().find(|place| reaches(place)).copied()
    }

    pub fn live(&self, clock: Time) -> impl Iterator<Item = &Place> {
        self.0.iter().filter(move |place| place.until > clock)
    }
}
