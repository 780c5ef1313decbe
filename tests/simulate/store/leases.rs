//! What the store promised of a lease, and the faults that break it.

use tower_lock::backend::LeaseId;

use super::{Item, Store};
use crate::time::{Time, valid_until};

impl Store {
    pub(super) fn lengthen(&mut self, item: &Item, lease: LeaseId, sent: Time, now: Time) {
        let expires = self.clock(now) + item.ttl;
        if let Some(live) = self.live.get_mut(&item.key) {
            live.expires = live.expires.max(expires);
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
        if let Some(live) = self.live.get(&key)
            && let Some(record) = self.records.get_mut(&live.lease)
        {
            record.broken = true;
        }
    }

    fn break_all(&mut self, now: Time) {
        for key in self.live.keys().copied().collect::<Vec<_>>() {
            self.break_lease(key, now);
        }
    }

    /// Loses everything but its clock.
    pub fn restart(&mut self, now: Time) {
        self.break_all(now);
        self.live.clear();
        self.queues.clear();
        // Tokens increase over a restart only if the clock never went back.
        if !self.stepped_back {
            self.counter = self.clock_counter(now);
        }
    }

    pub fn step(&mut self, step: Time, now: Time) {
        // What has expired stays so.
        let clock = self.clock(now);
        self.live.retain(|_, live| live.expires > clock);
        if step > 0 {
            self.break_all(now);
        } else {
            self.stepped_back = true;
            for record in self.records.values_mut() {
                record.longest -= step;
            }
        }
        for queue in self.queues.values_mut() {
            queue.step(step);
        }
        self.steps += step;
    }
}
