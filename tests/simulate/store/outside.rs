//! The clients outside the queue. They acquire a free key, whatever its queue contains.

use tower_lock::backend::{LeaseId, Mode};

use super::{Begun, How, Store};
use crate::time::{SECOND, Time};

/// The lease of such a client, as of Redisson.
const LEASE: Time = 30 * SECOND;

impl Store {
    /// The clients outside that listen to a key.
    pub fn outside(&self, key: usize) -> Vec<usize> {
        self.outside
            .get(&key)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    /// Grants a key to a client if it is free. Otherwise the client listens, and the key has this TTL.
    pub fn attempt_outside(
        &mut self,
        client: usize,
        key: usize,
        lease: LeaseId,
        now: Time,
    ) -> Option<Time> {
        let left = self.left(key, now);
        let listening = self.outside.entry(key).or_default();
        if left.is_some() {
            listening.insert(client);
            return left;
        }
        listening.remove(&client);
        self.hold(key, (lease, Mode::Exclusive), LEASE, now);
        self.begun.push(Begun {
            key,
            manager: None,
            transferred: None,
            how: How::Outside,
            mode: Mode::Exclusive,
            limit: 0,
            held: 1,
            entered: None,
        });
        None
    }

    /// Frees a key that this lease holds. The queue is not served, only notified.
    pub fn release_outside(&mut self, key: usize, lease: LeaseId, now: Time) {
        if self.holds(key, lease, now) {
            self.bodies.remove(&key);
            self.published.push(key);
        }
    }

    /// Ends all subscriptions of the clients outside.
    pub fn end_outside(&mut self) {
        self.outside.clear();
    }
}
