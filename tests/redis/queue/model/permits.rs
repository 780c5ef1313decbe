//! Permits in the reference: as many leases hold a lock as each of them permits when it comes.

use std::collections::BTreeMap;

use super::shared::Ended;
use super::{Body, Mode, Model, limit_of, mode_of};

/// The permits of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Permits {
    /// The names of the leases, and their deadlines.
    pub(crate) leases: BTreeMap<String, i64>,
    /// A moment that no deadline precedes. Until then, the script counts the leases without their deadlines.
    pub(crate) next: i64,
    pub(crate) until: i64,
}

impl Permits {
    pub(super) fn new(name: String, until: i64) -> Self {
        Self {
            leases: BTreeMap::from([(name, until)]),
            next: until,
            until,
        }
    }

    /// A repeat does not shorten the lease.
    pub(super) fn hold(&mut self, name: String, until: i64) {
        let own = self.leases.entry(name).or_insert(until);
        *own = until.max(*own);
        self.next = self.next.min(*own);
        self.until = self.until.max(until);
    }

    pub(super) fn end(&mut self, name: &str, now: i64) -> Ended {
        let Some(at) = self.leases.remove(name) else {
            return Ended::Not;
        };
        if self.leases.is_empty() || at >= self.until - 1 {
            let latest = self.leases.values().max().copied();
            match latest.filter(|latest| *latest > now) {
                Some(latest) => self.until = latest,
                // In its last millisecond, the body is there although the lease has expired.
                None => return Ended::Freed,
            }
        }
        if at > now { Ended::Kept } else { Ended::Not }
    }
}

impl Model {
    /// Returns the time after which a permit may be free, or `None` if fewer than `limit` leases hold the lock.
    pub(super) fn full(&mut self, limit: i64) -> Option<i64> {
        let now = self.now;
        let Body::Permits(permits) = &mut self.body else {
            return None;
        };
        let count = |permits: &Permits| i64::try_from(permits.leases.len()).unwrap();
        let before = count(permits);
        if before < limit {
            return None;
        }
        if permits.next > now {
            return Some(permits.next - now);
        }
        permits.leases.retain(|_, until| *until > now);
        let next = permits.leases.values().min().copied();
        self.dirty |= count(permits) < before;
        // A server with full memory rejects it.
        let is_stored = self.may_grow();
        let Body::Permits(permits) = &mut self.body else {
            unreachable!("permits hold it");
        };
        if is_stored {
            permits.next = next.unwrap_or(now);
        }
        (count(permits) >= limit).then(|| next.map_or(0, |next| next - now))
    }

    /// Returns `true` if the lease with this name may hold the lock beside those of `mode`.
    pub(super) fn fits(&mut self, mode: Mode, name: &str) -> bool {
        if mode_of(name) != Some(mode) {
            return false;
        }
        let wait = limit_of(name).and_then(|limit| self.full(limit));
        wait.is_none()
    }
}
