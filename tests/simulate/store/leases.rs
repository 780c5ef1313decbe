//! What the store promised of a lease, and the faults that break it.

use tower_lock::backend::LeaseId;

use super::{Item, Store};
use crate::time::{Time, valid_until};

impl Store {
    pub(super) fn lengthen(&mut self, item: &Item, lease: LeaseId, sent: Time, now: Time) {
        let expires = self.clock(now) + item.ttl;
        if let Some(body) = self.bodies.get_mut(&item.key) {
            body.expires = body.expires.max(expires);
            if let Some(until) = body.leases.get_mut(&lease) {
                *until = expires.max(*until);
            }
        }
        self.promise(lease, item.ttl, sent, now);
    }

    pub(super) fn promise(&mut self, lease: LeaseId, ttl: Time, sent: Time, now: Time) {
        if let Some(record) = self.records.get_mut(&lease) {
            record.valid_until = record.valid_until.max(valid_until(sent, ttl));
            record.longest = record.longest.max(now + ttl);
        }
    }

    pub(super) fn break_lease(&mut self, key: usize, now: Time) {
        self.broken_at.insert(key, now);
        let leases = self.bodies.get(&key).into_iter();
        for lease in leases.flat_map(|body| body.leases.keys()) {
            if let Some(record) = self.records.get_mut(lease) {
                record.broken = true;
            }
        }
    }

    fn break_all(&mut self, now: Time) {
        for key in self.bodies.keys().copied().collect::<Vec<_>>() {
            self.break_lease(key, now);
        }
    }

    /// Loses everything but its clock.
    pub fn restart(&mut self, now: Time) {
        self.break_all(now);
        self.bodies.clear();
        self.queues.clear();
        // Tokens increase over a restart only if the clock never went back.
        if !self.stepped_back {
            self.counter = self.clock_counter(now);
        }
    }

    pub fn step(&mut self, step: Time, now: Time) {
        // What has expired stays so.
        let clock = self.clock(now);
        self.bodies.retain(|_, body| body.expires > clock);
        for body in self.bodies.values_mut() {
            body.leases.retain(|_, until| *until > clock);
        }
        if step > 0 {
            self.break_all(now);
        } else {
            self.stepped_back = true;
            for record in self.records.values_mut() {
                record.longest -= step;
                record.stepped_back = true;
            }
        }
        for queue in self.queues.values_mut() {
            queue.step(step);
        }
        self.steps += step;
    }
}
