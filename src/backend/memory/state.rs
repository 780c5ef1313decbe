//! The state of the store, and the effect of each command on it.

use std::collections::hash_map;
use std::num::NonZeroU16;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::entry::{Entry, Held, Room};
use crate::LockKey;
use crate::backend::subscribers::Subscribers;
use crate::backend::waiters::{Next, Place, Waiters};
use crate::backend::{
    AcquireRequest, Acquired, Contended, Downgraded, KeepRequest, LeaseId, Mode, Release, Released,
    ReleasedOrKept, Renewal, Renewed,
};
use crate::key::KeyMap;

/// The smallest number of entries at which a sweep is worthwhile.
const MIN_SWEEP: usize = 64;

/// What each command writes comes first, on a cache line of its own: all cores read the rest.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct MemoryState {
    pub(super) leases: KeyMap<Entry>,
    /// The last counter, or `None` before the first.
    pub(super) counter: Option<u64>,
    /// The number of entries at which abandoned ones are removed. It is then set to twice the number
    /// of entries left, so a sweep takes amortized constant time per operation.
    pub(super) sweep_at: usize,
    pub(super) watchers: KeyMap<Subscribers>,
    /// The waiters of each key that has any.
    pub(super) queues: KeyMap<Waiters>,
    /// The counter as a node of a quorum, or `None` before the first confirmation.
    pub(super) fence: Option<u64>,
}

impl MemoryState {
    #[inline]
    pub(super) fn live(&mut self, key: &LockKey, now: Instant) -> Option<&mut Entry> {
        let entry = self.leases.get_mut(key)?;
        entry.is_live(now).then_some(entry)
    }

    fn held_by(&mut self, key: &LockKey, lease: LeaseId, now: Instant) -> Option<&mut Held> {
        self.live(key, now)?.find(lease)
    }

    /// Grants a lease that may hold the key, or holds it already.
    fn grant(&mut self, key: &LockKey, lease: LeaseId, mode: Mode, expires: Instant, now: Instant) {
        let Some(entry) = self.live(key, now) else {
            let entry = Entry::new(lease, mode, expires);
            self.leases.insert(key.clone(), entry);
            return;
        };
        match entry.find(lease) {
            // As in a store where the key lasts until the latest end.
            Some(held) if mode != Mode::Exclusive => held.expires = held.expires.max(expires),
            Some(held) => held.expires = expires,
            None => entry.join(lease, expires),
        }
    }

    /// Reserves `count` unused counters and returns the first.
    pub(super) fn next_counters(&mut self, count: u32) -> u64 {
        let last = self.counter.get_or_insert_with(|| {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
            u64::try_from(since_epoch.unwrap_or_default().as_micros()).unwrap_or(0)
        });
        let first = *last + 1;
        *last += u64::from(count);
        first
    }

    pub(super) fn try_acquire(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        counter: impl FnOnce(&mut Self) -> u64,
    ) -> Acquired {
        let AcquireRequest {
            key,
            lease,
            ttl,
            mode,
            limit,
            intent,
            listens: _,
        } = request;
        let (lease, mode, limit, expires) = (*lease, *mode, *limit, now + *ttl);
        if mode == Mode::Exclusive {
            if let (Some(_), Some(waiters)) = (intent, self.queues.get_mut(key)) {
                waiters.withdraw(lease.manager());
            }
            self.sweep(now);
            let fresh = Entry::new(lease, mode, expires);
            match self.leases.entry(key.clone()) {
                hash_map::Entry::Vacant(free) => {
                    free.insert(fresh);
                }
                hash_map::Entry::Occupied(mut found) => {
                    let entry = found.get_mut();
                    if entry.is_live(now) && !entry.has(lease) {
                        let left = entry.expires().map_or(Duration::ZERO, |it| it - now);
                        if let (Some(intent), Room::Shared) = (intent, entry.room()) {
                            let waiters = self.queues.entry(key.clone()).or_default();
                            waiters.announce(lease.manager(), now + *intent);
                        }
                        return Acquired::busy(left);
                    }
                    *entry = fresh;
                }
            }
        } else if let Some(busy) = self.excludes(key, lease, (mode, limit), now) {
            return Acquired::busy(busy);
        } else {
            self.sweep(now);
            self.grant(key, lease, mode, expires, now);
        }
        Acquired::granted(counter(self))
    }

    /// Returns the time for which a lease has to wait, or `None` if it may hold the key. A shared lease waits for the
    /// leases of another mode that wait before it, and a permit for all of them.
    fn excludes(
        &mut self,
        key: &LockKey,
        lease: LeaseId,
        (mode, limit): (Mode, Option<NonZeroU16>),
        now: Instant,
    ) -> Option<Duration> {
        let until = match self.live(key, now) {
            Some(entry) if entry.has(lease) => return None,
            Some(entry) if !entry.room().admits(mode, limit) => {
                return entry.has_room_at(mode).map(|until| until - now);
            }
            Some(entry) => entry.has_room_at(mode),
            None if mode == Mode::Exclusive => return None,
            None => None,
        };
        let waiters = self.queues.get_mut(key)?;
        let intent = waiters.last_intent(lease.manager(), now);
        if intent.is_none() && !waiters.precede(lease, mode, now) {
            return None;
        }
        Some(intent.or(until).map_or(Duration::ZERO, |until| until - now))
    }

    pub(super) fn contend(&mut self, request: &AcquireRequest, now: Instant) -> Contended {
        let AcquireRequest {
            key,
            lease,
            ttl,
            listens,
            mode,
            limit,
            intent: _,
        } = request;
        let (lease, mode, listens) = (*lease, *mode, *listens);
        let place = Place {
            lease,
            mode,
            limit: *limit,
            listens,
        };
        let mut next = None;
        if self.live(key, now).is_none() && self.queues.contains_key(key) {
            self.enter(key, place, now);
            next = self.transfer(key, Some(lease), now);
        }
        if next != Some(lease)
            && let Some(left) = self.excludes(key, lease, (mode, *limit), now)
        {
            self.enter(key, place, now);
            return Contended::waiting(left, self.queued(key, now));
        }
        self.forget(key, lease);
        self.sweep(now);
        self.grant(key, lease, mode, now + *ttl, now);
        self.admit(key, now);
        Contended::granted(self.next_counters(1))
    }

    pub(super) fn enter(&mut self, key: &LockKey, place: Place, now: Instant) {
        let waiters = self.queues.entry(key.clone()).or_default();
        waiters.enter(place, now);
    }

    fn forget(&mut self, key: &LockKey, lease: LeaseId) {
        if let Some(waiters) = self.queues.get_mut(key) {
            waiters.forget(lease);
        }
    }

    /// Returns the number of live waiters, and drops a queue without one.
    pub(super) fn queued(&mut self, key: &LockKey, now: Instant) -> u32 {
        let waiters = self.queues.get_mut(key);
        let queued = waiters.map_or(0, |waiters| waiters.prune(now));
        if queued == 0 {
            self.queues.remove(key);
        }
        u32::try_from(queued).unwrap_or(u32::MAX)
    }

    /// Gives a free key to its first waiters, or to none if the first one is `own`. Returns the first one.
    fn transfer(&mut self, key: &LockKey, own: Option<LeaseId>, now: Instant) -> Option<LeaseId> {
        let next = self.next(key, own, now);
        if next != own {
            self.admit(key, now);
        }
        next
    }

    /// Gives a key that shared leases or permits hold to the first waiters, up to the first one without room.
    fn admit(&mut self, key: &LockKey, now: Instant) {
        let has_room = |entry: &mut Entry| !matches!(entry.room(), Room::None);
        while self.live(key, now).is_some_and(has_room) && self.next(key, None, now).is_some() {}
    }

    /// Gives the key to the next waiter that it has room for, unless that is `own`.
    fn next(&mut self, key: &LockKey, own: Option<LeaseId>, now: Instant) -> Option<LeaseId> {
        let room = self.live(key, now).map(|entry| entry.room());
        let fits = |mode, limit| room.is_none_or(|room| room.admits(mode, limit));
        let waiters = self.queues.get_mut(key)?;
        let watchers = self.watchers.get(key);
        let notify = |lease| watchers.is_some_and(|watchers| watchers.transfer(lease));
        let next = waiters.next(own, fits, now, notify);
        self.queued(key, now);
        let Next { lease, mode, ttl } = next?;
        if own != Some(lease) {
            self.grant(key, lease, mode, now + ttl, now);
        }
        Some(lease)
    }

    pub(super) fn leave(&mut self, leaver: &Release, now: Instant) -> Released {
        self.forget(&leaver.key, leaver.lease);
        let released = self.release(leaver, now);
        // An exclusive waiter that left may have been ahead of shared ones.
        self.admit(&leaver.key, now);
        released
    }

    pub(super) fn release(&mut self, release: &Release, now: Instant) -> Released {
        // Mostly the lease is the only one of its key.
        if let Some(held) = self.leases.get(&release.key).and_then(Entry::only) {
            return match held.lease == release.lease && held.expires > now {
                true => self.free(&release.key, now),
                false => Released::NotHeld,
            };
        }
        self.end(&release.key, now, |held| held.lease == release.lease)
    }

    /// Ends the lease that `which` selects, and serves the waiters if it was the last one.
    pub(super) fn end(
        &mut self,
        key: &LockKey,
        now: Instant,
        which: impl Fn(&Held) -> bool,
    ) -> Released {
        let Some(entry) = self.live(key, now) else {
            return Released::NotHeld;
        };
        let Some(lease) = entry.lease(which) else {
            return Released::NotHeld;
        };
        if entry.is_last(lease) {
            self.free(key, now)
        } else {
            // A permit may have been free for the next waiter.
            self.admit(key, now);
            Released::Released
        }
    }

    pub(super) fn release_or_keep(
        &mut self,
        request: &KeepRequest,
        now: Instant,
    ) -> ReleasedOrKept {
        let watchers = self.watchers.get_mut(&request.key);
        let watchers = u32::try_from(watchers.map_or(0, Subscribers::prune)).unwrap_or(u32::MAX);
        let watchers = watchers.max(self.queued(&request.key, now));
        let Some(held) = self.held_by(&request.key, request.lease, now) else {
            return ReleasedOrKept::NotHeld;
        };
        if watchers > 0 {
            let released = self.free(&request.key, now);
            if let Some(next) = request.next {
                let place = Place::exclusive(next, request.listens);
                self.enter(&request.key, place, now);
            }
            return ReleasedOrKept::passed(released, watchers, request.next.is_some());
        }
        held.expires = held.expires.max(now + request.ttl);
        ReleasedOrKept::kept(self.next_counters(request.counters))
    }

    pub(super) fn renew(&mut self, renewal: &Renewal, now: Instant) -> Renewed {
        let Some(held) = self.held_by(&renewal.key, renewal.lease, now) else {
            return Renewed::NotHeld;
        };
        held.expires = held.expires.max(now + renewal.ttl);
        let waiters = self.queues.get_mut(&renewal.key);
        let is_shared = renewal.mode == Mode::Shared;
        if is_shared && waiters.is_some_and(|waiters| waiters.has_writer(now)) {
            return Renewed::Wanted;
        }
        Renewed::Renewed
    }

    pub(super) fn downgrade(&mut self, lease: &Renewal, now: Instant) -> Downgraded {
        let Renewal { key, ttl, .. } = lease;
        let entry = self.live(key, now);
        let Some(held) = entry.and_then(|entry| entry.share(lease.lease)) else {
            return Downgraded::NotHeld;
        };
        held.expires = held.expires.max(now + *ttl);
        match self.queued(key, now) {
            0 => self.hint(key),
            _ => self.admit(key, now),
        }
        Downgraded::shared(self.next_counters(1))
    }

    pub(super) fn free(&mut self, key: &LockKey, now: Instant) -> Released {
        self.leases.remove(key);
        if !self.queues.is_empty() && self.transfer(key, None, now).is_some() {
            return Released::Transferred;
        }
        self.hint(key);
        Released::Released
    }

    /// Notifies the subscribers of a key.
    pub(super) fn hint(&mut self, key: &LockKey) {
        if let Some(watchers) = self.watchers.get_mut(key) {
            if watchers.prune() == 0 {
                self.watchers.remove(key);
            } else {
                watchers.hint();
            }
        }
    }

    pub(super) fn sweep(&mut self, now: Instant) {
        let entries = self.leases.len() + self.watchers.len() + self.queues.len();
        // Far below it a burst is over, and the maps are too large.
        let is_over = self.sweep_at > MIN_SWEEP && entries < self.sweep_at / 8;
        if entries < self.sweep_at && !is_over {
            return;
        }
        self.leases.retain(|_, entry| entry.is_live(now));
        self.watchers.retain(|_, watchers| watchers.prune() > 0);
        self.queues.retain(|_, waiters| waiters.prune(now) > 0);
        self.leases.shrink_to(2 * self.leases.len());
        self.queues.shrink_to(2 * self.queues.len());
        self.watchers.shrink_to(2 * self.watchers.len());
        let left = self.leases.len() + self.watchers.len() + self.queues.len();
        self.sweep_at = MIN_SWEEP.max(2 * left);
    }
}
