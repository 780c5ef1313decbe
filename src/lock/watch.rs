//! Subscriptions to the messages of the backend, and transfers to leases that no lane has.
//!
//! A place in the queue of the backend belongs to a lane until the lane leaves it. A backend that lost its last writes
//! can have a place that was left before, and transfer the key to it. The process then leaves the place again.

use std::sync::Arc;

use super::engine::Engine;
use super::lease::LeaseNumber;
use super::place::PLACE;
use crate::LockKey;
use crate::backend::{Hints, LeaseId};
use crate::task::RuntimeId;

impl Engine {
    /// Subscribes this manager to a key, for a task in `home`. Of the transfers before, receives only that to the lease
    /// `place`. A transfer that no acquire loop receives is left, unless a lane may have it.
    pub(super) fn watch(
        self: &Arc<Self>,
        key: &LockKey,
        place: Option<LeaseId>,
        home: RuntimeId,
    ) -> Hints {
        let hints = self.backend.watch(key, self.id);
        let (engine, lock) = (Arc::downgrade(self), key.stored().clone());
        let hints = hints.reporting_unread(Arc::new(move |lease| {
            let Some(home) = engine.upgrade().and_then(|engine| engine.home(home)) else {
                return;
            };
            // The reporter may hold a mutex.
            let (engine, lock, id) = (engine.clone(), lock.clone(), home.id);
            home.runtime.spawn(async move {
                if let Some(engine) = engine.upgrade() {
                    engine.transferred_to(&lock, lease, id);
                }
            });
        }));
        let mut hints = match key.is_of_permit() {
            // Until its attempt, whose lease it then receives.
            true => hints.receiving(|_| false),
            // The permits of the key have lanes of their own.
            false => hints.receiving(|lease| !LeaseNumber::of(lease).is_of_permit()),
        };
        // Last: it also drops what arrived before the filter.
        hints.drop_transfer_unless(place);
        hints
    }

    /// Leaves a lease to which the backend transferred the key, unless a lane may have it.
    ///
    /// No lane gets the lease after this check. A fresh lease has a fresh number, and its lane has it before the
    /// command is sent. If a return has ended before the reply that its command entered a place, that place is left. A
    /// lane does not reuse the number of a lease that it has left.
    pub(super) fn transferred_to(
        self: &Arc<Self>,
        lock: &LockKey,
        lease: LeaseId,
        home: RuntimeId,
    ) {
        // The lease of another manager can have the number of one of this manager.
        if lease.manager() != self.id {
            return;
        }
        let (lanes, lease) = (&self.lanes, LeaseNumber::of(lease));
        let mut may_have = false;
        match lease.is_of_permit() {
            true => lanes.inspect_permits(lock, |_, lane| may_have |= lane.may_have(lease)),
            false => may_have = lanes.inspect(lock, |lane| lane.may_have(lease)) == Some(true),
        }
        if !may_have {
            self.resolve(lock, lease, PLACE, home);
        }
    }
}

#[cfg(test)]
mod tests;
