//! Leases in this process: the default, and the reference for what a backend does.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::{
    Acquired, Backend, BackendError, Extended, Fence, ForceReleased, HintSender, Hints, Holder,
    Immediate, LeaseId, Node, Passed, Released, Renewal, Renewed,
};
use crate::LockKey;
use crate::key::KeyMap;

/// Leases in the memory of this process.
///
/// Clones share their leases, so two managers over clones of one `Memory` exclude each other as two
/// processes over one Redis do. Fencing tokens start at the wall clock in microseconds and so keep
/// growing over restarts of the process.
#[derive(Clone, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    leases: KeyMap<Entry>,
    watchers: KeyMap<Vec<HintSender>>,
    counter: u64,
    /// The first counter's time, from the epoch on and by the clock that all others are counted by.
    started: Option<(Duration, Instant)>,
    /// The counter as a node of a quorum; none before it was confirmed.
    fence: Option<u64>,
    /// Abandoned entries are swept out when the maps reach this size, which then doubles what is
    /// left: constant work per operation, and no more garbage than content.
    sweep_at: usize,
}

struct Entry {
    lease: LeaseId,
    expires: Instant,
}

impl Memory {
    /// An empty store.
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

    /// The first of `count` counters that nobody had.
    fn next_counters(&mut self, count: u32, now: Instant) -> u64 {
        let (since_epoch, then) = self.started.get_or_insert_with(|| {
            let now_of_world = SystemTime::now().duration_since(UNIX_EPOCH);
            (now_of_world.unwrap_or_default(), now)
        });
        let micros = (*since_epoch + now.saturating_duration_since(*then)).as_micros();
        let micros = u64::try_from(micros).unwrap_or(0);
        let first = micros.max(self.counter + 1);
        self.counter = first + u64::from(count) - 1;
        first
    }

    fn try_acquire(
        &mut self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
        now: Instant,
        counter: impl FnOnce(&mut Self) -> u64,
    ) -> Acquired {
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

    fn release(&mut self, key: &LockKey, lease: LeaseId, now: Instant) -> Released {
        if self.held_by(key, lease, now).is_some() {
            self.free(key);
            Released::Released
        } else {
            Released::NotHeld
        }
    }

    fn extend(&mut self, key: &LockKey, lease: LeaseId, ttl: Duration, now: Instant) -> Extended {
        let watchers = self.watchers.get(key).map_or(&[][..], Vec::as_slice);
        let watchers = watchers.iter().filter(|watcher| !watcher.is_closed());
        let watchers = u32::try_from(watchers.count()).unwrap_or(u32::MAX);
        let Some(entry) = self.held_by(key, lease, now) else {
            return Extended::NotHeld;
        };
        if watchers > 0 {
            return Extended::wanted(watchers);
        }
        entry.expires = entry.expires.max(now + ttl);
        Extended::kept(self.next_counters(Passed::COUNTERS, now))
    }

    fn free(&mut self, key: &LockKey) {
        self.leases.remove(key);
        if let Some(watchers) = self.watchers.get_mut(key) {
            watchers.retain(|watcher| !watcher.is_closed());
            watchers.iter().for_each(HintSender::hint);
            if watchers.is_empty() {
                self.watchers.remove(key);
            }
        }
    }

    fn sweep(&mut self, now: Instant) {
        if self.leases.len() + self.watchers.len() < self.sweep_at {
            return;
        }
        self.leases.retain(|_, entry| entry.expires > now);
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_closed());
            !watchers.is_empty()
        });
        self.sweep_at = 64.max(2 * (self.leases.len() + self.watchers.len()));
    }
}

impl Backend for Memory {
    async fn try_acquire(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        Immediate::try_acquire(self, key, lease, ttl, Instant::now())
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

    async fn release(&self, leases: &[(LockKey, LeaseId)]) -> Vec<Result<Released, BackendError>> {
        let mut state = self.state();
        let now = Instant::now();
        leases
            .iter()
            .map(|(key, lease)| Ok(state.release(key, *lease, now)))
            .collect()
    }

    async fn pass(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Passed, BackendError> {
        let mut state = self.state();
        Ok(match state.extend(key, lease, ttl, Instant::now()) {
            Extended::Kept { counter } => Passed::kept(counter),
            Extended::Wanted { watchers } => {
                state.free(key);
                Passed::released(watchers)
            }
            Extended::NotHeld => Passed::NotHeld,
        })
    }

    async fn extend(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Extended, BackendError> {
        Ok(self.state().extend(key, lease, ttl, Instant::now()))
    }

    fn watch(&self, key: &LockKey) -> Hints {
        let (sender, hints) = Hints::channel();
        sender.hint();
        let mut state = self.state();
        state.sweep(Instant::now());
        state.watchers.entry(key.clone()).or_default().push(sender);
        hints
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let now = Instant::now();
        Ok(self
            .state()
            .live(key, now)
            .map(|entry| Holder::new(entry.lease.to_string(), entry.expires - now, 1)))
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        let mut state = self.state();
        Ok(if state.live(key, Instant::now()).is_some() {
            state.free(key);
            ForceReleased::Released
        } else {
            ForceReleased::NotHeld
        })
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }
}

impl Immediate for Memory {
    fn try_acquire(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
        now: Instant,
    ) -> Result<Acquired, BackendError> {
        let counter = |state: &mut State| state.next_counters(1, now);
        Ok(self.state().try_acquire(key, lease, ttl, now, counter))
    }

    fn release(
        &self,
        key: &LockKey,
        lease: LeaseId,
        now: Instant,
    ) -> Result<Released, BackendError> {
        Ok(self.state().release(key, lease, now))
    }
}

impl Node for Memory {
    async fn vote(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
        fence: Fence,
    ) -> Result<Acquired, BackendError> {
        let counter = |state: &mut State| {
            state.fence = fence.after(state.fence);
            state.fence.unwrap_or(0)
        };
        let now = Instant::now();
        Ok(self.state().try_acquire(key, lease, ttl, now, counter))
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
