//! What holds a key: one exclusive lease, or shared ones or permits, each with its own deadline.

use std::collections::BTreeMap;

use tower_lock::backend::{LeaseId, Mode};

use super::{Item, Outcome, Store};
use crate::environment::number;
use crate::time::Time;

#[derive(Debug)]
pub(super) struct Body {
    pub(super) mode: Mode,
    /// The leases, and when each of them ends. Those that have expired may stay beside others.
    pub(super) leases: BTreeMap<LeaseId, Time>,
    /// When the body ends.
    pub(super) expires: Time,
}

/// What is left of a key after the end of a lease that held it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Other leases share it.
    Kept,
    Freed,
}

impl Store {
    fn body(&self, key: usize, now: Time) -> Option<&Body> {
        let body = self.bodies.get(&key)?;
        (body.expires > self.clock(now)).then_some(body)
    }

    /// How the key is held.
    pub fn mode(&self, key: usize, now: Time) -> Option<Mode> {
        self.body(key, now).map(|body| body.mode)
    }

    /// How long the key is held.
    pub fn left(&self, key: usize, now: Time) -> Option<Time> {
        let body = self.body(key, now)?;
        Some(body.expires - self.clock(now))
    }

    /// The leases that hold the key, and how long each of them does.
    pub fn holders(&self, key: usize, now: Time) -> Vec<(LeaseId, Time)> {
        let clock = self.clock(now);
        let leases = self.body(key, now).into_iter();
        let leases = leases.flat_map(|body| &body.leases);
        let left = leases.map(|(lease, until)| (*lease, until - clock));
        left.filter(|(_, left)| *left > 0).collect()
    }

    /// The lease that holds the key for the longest time, and for how long.
    pub fn latest(&self, key: usize, now: Time) -> Option<(LeaseId, Time)> {
        let holders = self.holders(key, now).into_iter();
        // The ids of managers are random.
        holders.max_by_key(|(lease, left)| (*left, number(*lease)))
    }

    /// The keys that are held, with each of their leases.
    pub fn held(&self, now: Time) -> Vec<(usize, LeaseId)> {
        let keys = self.bodies.keys();
        let holders = keys.flat_map(|key| {
            let holders = self.holders(*key, now).into_iter();
            holders.map(|(lease, _)| (*key, lease))
        });
        holders.collect()
    }

    pub fn holds(&self, key: usize, lease: LeaseId, now: Time) -> bool {
        let body = self.body(key, now);
        let until = body.and_then(|body| body.leases.get(&lease));
        until.is_some_and(|until| *until > self.clock(now))
    }

    /// How long a key is held after the last of its leases. Negative if it is held for less.
    pub fn outlives(&self, key: usize, now: Time) -> Option<Time> {
        let body = self.body(key, now)?;
        Some(body.expires - body.leases.values().max().copied().unwrap_or(0))
    }

    /// Lets the key be held for longer than its leases.
    pub fn hold_longer(&mut self, key: usize, by: Time) {
        if let Some(body) = self.bodies.get_mut(&key) {
            body.expires += by;
        }
    }

    /// How long a lease has to wait, or `None` if it may hold the key. Exclusive ones take no notice of the queue.
    pub(super) fn excludes(&mut self, item: &Item, lease: LeaseId, now: Time) -> Option<Time> {
        let left = self.left(item.key, now);
        if self.holds(item.key, lease, now) {
            return None;
        }
        match (item.mode, self.mode(item.key, now)) {
            (Mode::Exclusive, _) => left,
            (mode, Some(held)) if mode != held => left,
            _ => (self.full(item, now))
                .or_else(|| (self.is_wanted(item, None, now)).then_some(left.unwrap_or(0))),
        }
    }

    /// The time after which a permit may be free, or `None` if one is.
    pub(super) fn full(&self, item: &Item, now: Time) -> Option<Time> {
        let holders = self.holders(item.key, now);
        let is_full = item.mode == Mode::Permit && holders.len() >= item.limit;
        let left = holders.iter().map(|(_, left)| *left).min();
        left.filter(|_| is_full)
    }

    /// A lease that may hold the key holds it from now on. A repeat does not shorten one of several leases.
    pub(super) fn hold(
        &mut self,
        key: usize,
        (lease, mode): (LeaseId, Mode),
        ttl: Time,
        now: Time,
    ) {
        let until = self.clock(now) + ttl;
        let joins = mode != Mode::Exclusive && self.mode(key, now) == Some(mode);
        if let Some(body) = self.bodies.get_mut(&key).filter(|_| joins) {
            let own = body.leases.entry(lease).or_insert(until);
            *own = until.max(*own);
            body.expires = body.expires.max(until);
            return;
        }
        let body = Body {
            mode,
            leases: BTreeMap::from([(lease, until)]),
            expires: until,
        };
        self.bodies.insert(key, body);
    }

    /// Makes the lease that holds the key shared, and serves the shared waiters.
    pub(super) fn downgrade(
        &mut self,
        item: &Item,
        lease: LeaseId,
        sent: Time,
        now: Time,
    ) -> Outcome {
        let key = item.key;
        if let Some(body) = self.bodies.get_mut(&key) {
            body.mode = Mode::Shared;
        }
        self.lengthen(item, lease, sent, now);
        if let Some(record) = self.records.get_mut(&lease) {
            record.mode = Mode::Shared;
            record.decided = now;
        }
        let counter = self.next_counters(key, lease, 1, now);
        if self.queued(key, now).is_empty() {
            self.published.push(key);
        } else {
            self.admit(key, None, now);
        }
        Outcome::Granted { counter }
    }

    /// Ends a lease that holds the key.
    pub(super) fn ended(&mut self, key: usize, lease: LeaseId, now: Time) -> Ended {
        let clock = self.clock(now);
        if let Some(body) = self.bodies.get_mut(&key) {
            body.leases.remove(&lease);
            if let Some(latest) = body.leases.values().max().filter(|it| **it > clock) {
                body.expires = *latest;
                return Ended::Kept;
            }
        }
        Ended::Freed
    }
}
