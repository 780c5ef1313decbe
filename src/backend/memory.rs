//! Leases in this process: the default backend, and the reference implementation of the contract.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use uuid::Uuid;

use super::subscribers::Subscribers;
use super::waiters::{Next, Waiters};
use super::{
    AcquireRequest, Acquired, Backend, BackendError, ContendRequest, Contended, Extended, Fence,
    ForceReleased, Hints, Holder, Immediate, KeepRequest, LeaseId, Node, Release, Released,
    ReleasedOrKept, Renewal, Renewed,
};
use crate::LockKey;
use crate::key::KeyMap;

/// Leases in the memory of this process.
///
/// Clones share their leases, so two managers over clones of one `Memory` exclude each other like two
/// processes over one Redis. Fencing tokens start at the wall clock in microseconds, so they increase
/// over restarts of the process.
#[derive(Clone, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

/// The smallest number of entries at which a sweep is worthwhile.
const MIN_SWEEP: usize = 64;

#[derive(Default)]
struct State {
    leases: KeyMap<Entry>,
    watchers: KeyMap<Subscribers>,
    /// The waiters of each key that has any.
    queues: KeyMap<Waiters>,
    /// The last counter, or `None` before the first.
    counter: Option<u64>,
    /// The counter as a node of a quorum, or `None` before the first confirmation.
    fence: Option<u64>,
    /// The number of entries at which abandoned ones are removed. It is then set to twice the number
    /// of entries left, so a sweep takes amortized constant time per operation.
    sweep_at: usize,
}

struct Entry {
    lease: LeaseId,
    expires: Instant,
}

impl Memory {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn live(&mut self, key: &LockKey, now: Instant) -> Option<&mut Entry> {
        self.leases.get_mut(key).filter(|entry| entry.expires > now)
    }

    fn held_by(&mut self, key: &LockKey, lease: LeaseId, now: Instant) -> Option<&mut Entry> {
        self.live(key, now).filter(|entry| entry.lease == lease)
    }

    /// Reserves `count` unused counters and returns the first.
    fn next_counters(&mut self, count: u32) -> u64 {
        let last = self.counter.get_or_insert_with(|| {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
            u64::try_from(since_epoch.unwrap_or_default().as_micros()).unwrap_or(0)
        });
        let first = *last + 1;
        *last += u64::from(count);
        first
    }

    fn try_acquire(
        &mut self,
        request: &AcquireRequest,
        now: Instant,
        counter: impl FnOnce(&mut Self) -> u64,
    ) -> Acquired {
        let AcquireRequest { key, lease, ttl } = request;
        let (lease, ttl) = (*lease, *ttl);
        if let Some(entry) = self.live(key, now)
            && entry.lease != lease
        {
            return Acquired::busy(entry.expires - now);
        }
        self.sweep(now);
        let expires = now + ttl;
        self.leases.insert(key.clone(), Entry { lease, expires });
        Acquired::granted(counter(self))
    }

    fn contend(&mut self, request: &ContendRequest, now: Instant) -> Contended {
        let ContendRequest {
            key,
            lease,
            ttl,
            listens,
        } = request;
        if self.live(key, now).is_none() && self.queues.contains_key(key) {
            self.enter(key, *lease, *listens, now);
            self.transfer(key, Some(*lease), now);
        }
        if let Some(entry) = self.live(key, now)
            && entry.lease != *lease
        {
            let left = entry.expires - now;
            self.enter(key, *lease, *listens, now);
            return Contended::waiting(left, self.queued(key, now));
        }
        self.forget(key, *lease);
        self.sweep(now);
        let (lease, expires) = (*lease, now + *ttl);
        self.leases.insert(key.clone(), Entry { lease, expires });
        Contended::granted(self.next_counters(1))
    }

    fn enter(&mut self, key: &LockKey, lease: LeaseId, listens: bool, now: Instant) {
        let waiters = self.queues.entry(key.clone()).or_default();
        waiters.enter(lease, listens, now);
    }

    fn forget(&mut self, key: &LockKey, lease: LeaseId) {
        if let Some(waiters) = self.queues.get_mut(key) {
            waiters.forget(lease);
        }
    }

    /// Returns the number of live waiters, and drops a queue without one.
    fn queued(&mut self, key: &LockKey, now: Instant) -> u32 {
        let waiters = self.queues.get_mut(key);
        let queued = waiters.map_or(0, |waiters| waiters.prune(now));
        if queued == 0 {
            self.queues.remove(key);
        }
        u32::try_from(queued).unwrap_or(u32::MAX)
    }

    /// Gives a free key to its first waiter, or to none if that is `own`. Returns `false` without a waiter.
    fn transfer(&mut self, key: &LockKey, own: Option<LeaseId>, now: Instant) -> bool {
        let Some(waiters) = self.queues.get_mut(key) else {
            return false;
        };
        let watchers = self.watchers.get(key);
        let notify = |lease| watchers.is_some_and(|watchers| watchers.transfer(lease));
        let next = waiters.next(own, now, notify);
        self.queued(key, now);
        let Some(Next { lease, ttl }) = next else {
            return false;
        };
        if own != Some(lease) {
            let expires = now + ttl;
            self.leases.insert(key.clone(), Entry { lease, expires });
        }
        true
    }

    fn leave(&mut self, leaver: &Release, now: Instant) -> Released {
        self.forget(&leaver.key, leaver.lease);
        self.release(leaver, now)
    }

    fn release(&mut self, release: &Release, now: Instant) -> Released {
        if self.held_by(&release.key, release.lease, now).is_some() {
            self.free(&release.key, now)
        } else {
            Released::NotHeld
        }
    }

    fn extend(&mut self, request: &KeepRequest, now: Instant) -> Extended {
        let watchers = self.watchers.get_mut(&request.key);
        let watchers = u32::try_from(watchers.map_or(0, Subscribers::prune)).unwrap_or(u32::MAX);
        let watchers = watchers.max(self.queued(&request.key, now));
        let Some(entry) = self.held_by(&request.key, request.lease, now) else {
            return Extended::NotHeld;
        };
        if watchers > 0 {
            return Extended::wanted(watchers);
        }
        entry.expires = entry.expires.max(now + request.ttl);
        Extended::kept(self.next_counters(ReleasedOrKept::COUNTERS))
    }

    fn free(&mut self, key: &LockKey, now: Instant) -> Released {
        if self.transfer(key, None, now) {
            return Released::Transferred;
        }
        self.leases.remove(key);
        if let Some(watchers) = self.watchers.get_mut(key) {
            if watchers.prune() == 0 {
                self.watchers.remove(key);
            } else {
                watchers.hint();
            }
        }
        Released::Released
    }

    fn sweep(&mut self, now: Instant) {
        let entries = self.leases.len() + self.watchers.len() + self.queues.len();
        // Far below it a burst is over, and the maps are too large.
        let is_over = self.sweep_at > MIN_SWEEP && entries < self.sweep_at / 8;
        if entries < self.sweep_at && !is_over {
            return;
        }
        self.leases.retain(|_, entry| entry.expires > now);
        self.watchers.retain(|_, watchers| watchers.prune() > 0);
        self.queues.retain(|_, waiters| waiters.prune(now) > 0);
        self.leases.shrink_to(2 * self.leases.len());
        self.queues.shrink_to(2 * self.queues.len());
        self.watchers.shrink_to(2 * self.watchers.len());
        let left = self.leases.len() + self.watchers.len() + self.queues.len();
        self.sweep_at = MIN_SWEEP.max(2 * left);
    }
}

impl Backend for Memory {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        Immediate::try_acquire(self, request, Instant::now())
    }

    async fn contend(&self, request: &ContendRequest) -> Result<Contended, BackendError> {
        Ok(self.state().contend(request, Instant::now()))
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let mut state = self.state();
        let now = Instant::now();
        leases
            .iter()
            .map(|leaver| Ok(state.leave(leaver, now)))
            .collect()
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        let mut state = self.state();
        let now = Instant::now();
        renewals
            .iter()
            .map(|renewal| {
                Ok(match state.held_by(&renewal.key, renewal.lease, now) {
                    Some(entry) => {
                        entry.expires = entry.expires.max(now + renewal.ttl);
                        Renewed::Renewed
                    }
                    None => Renewed::NotHeld,
                })
            })
            .collect()
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let mut state = self.state();
        let now = Instant::now();
        leases
            .iter()
            .map(|release| Ok(state.release(release, now)))
            .collect()
    }

    async fn release_or_keep(&self, request: &KeepRequest) -> Result<ReleasedOrKept, BackendError> {
        let mut state = self.state();
        let now = Instant::now();
        Ok(match state.extend(request, now) {
            Extended::Kept { counter } => ReleasedOrKept::kept(counter),
            Extended::Wanted { watchers } => {
                let released = state.free(&request.key, now);
                if let Some(next) = request.next {
                    state.enter(&request.key, next, request.listens, now);
                }
                ReleasedOrKept::passed(released, watchers, request.next.is_some())
            }
            Extended::NotHeld => ReleasedOrKept::NotHeld,
        })
    }

    async fn extend(&self, request: &KeepRequest) -> Result<Extended, BackendError> {
        Ok(self.state().extend(request, Instant::now()))
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        let (sender, hints) = Hints::channel();
        sender.hint();
        let mut state = self.state();
        state.sweep(Instant::now());
        let watchers = state.watchers.entry(key.clone()).or_default();
        watchers.push(Some(manager), sender);
        hints
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let now = Instant::now();
        let mut state = self.state();
        let queued = state.queued(key, now);
        Ok(state.live(key, now).map(|entry| {
            let holder = Holder::new(entry.lease.to_string(), entry.expires - now, 1);
            holder.with_queued(queued)
        }))
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        let mut state = self.state();
        let now = Instant::now();
        Ok(if state.live(key, now).is_some() {
            state.free(key, now);
            ForceReleased::Released
        } else {
            ForceReleased::NotHeld
        })
    }

    async fn force_release_held_by(
        &self,
        key: &LockKey,
        holder: &str,
    ) -> Result<ForceReleased, BackendError> {
        let mut state = self.state();
        let now = Instant::now();
        let entry = state.live(key, now);
        Ok(
            if entry.is_some_and(|entry| entry.lease.to_string() == holder) {
                state.free(key, now);
                ForceReleased::Released
            } else {
                ForceReleased::NotHeld
            },
        )
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }
}

impl Immediate for Memory {
    fn try_acquire(
        &self,
        request: &AcquireRequest,
        now: Instant,
    ) -> Result<Acquired, BackendError> {
        let counter = |state: &mut State| state.next_counters(1);
        Ok(self.state().try_acquire(request, now, counter))
    }

    fn release(&self, lease: &Release, now: Instant) -> Result<Released, BackendError> {
        Ok(self.state().release(lease, now))
    }
}

impl Node for Memory {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        let counter = |state: &mut State| {
            state.fence = fence.after(state.fence);
            state.fence.unwrap_or(0)
        };
        let now = Instant::now();
        Ok(self.state().try_acquire(request, now, counter))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Memory")
            .field("leases", &state.leases.len())
            .field("watched_keys", &state.watchers.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
