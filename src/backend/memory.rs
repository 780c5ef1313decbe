//! Leases in this process: the default backend, and the reference implementation of the contract.

mod entry;
mod state;

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;
use uuid::Uuid;

use self::state::MemoryState;
use super::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Contended, Downgraded, Fence,
    ForceReleased, Hints, Holder, KeepRequest, Node, Release, Released, ReleasedOrKept, Renewal,
    Renewed,
};
use crate::LockKey;
use crate::mutex::Mutex;

/// Leases in the memory of this process.
///
/// Clones share their leases, so two managers over clones of one `Memory` exclude each other like two
/// processes over one Redis. Fencing tokens start at the wall clock in microseconds, so they increase
/// over restarts of the process.
#[derive(Clone, Default)]
pub struct Memory {
    state: Arc<Mutex<MemoryState>>,
}

impl Memory {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn acquired(&self, request: &AcquireRequest, now: Instant) -> Acquired {
        let counter = |state: &mut MemoryState| state.next_counters(1);
        self.state.lock().try_acquire(request, now, counter)
    }

    pub(super) fn released(&self, lease: &Release, now: Instant) -> Released {
        self.state.lock().release(lease, now)
    }

    fn each<T, R>(
        &self,
        items: &[T],
        command: fn(&mut MemoryState, &T, Instant) -> R,
    ) -> Vec<Result<R, BackendError>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let outcomes = items.iter().map(|item| Ok(command(&mut state, item, now)));
        outcomes.collect()
    }
}

impl Backend for Memory {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        Ok(self.acquired(request, Instant::now()))
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        Ok(self.state.lock().contend(request, Instant::now()))
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.each(leases, MemoryState::leave)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        self.each(renewals, MemoryState::renew)
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.each(leases, MemoryState::release)
    }

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        self.each(leases, MemoryState::release_or_keep)
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        Ok(self.state.lock().downgrade(lease, Instant::now()))
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        let (sender, hints) = Hints::channel();
        sender.hint();
        let mut state = self.state.lock();
        state.sweep(Instant::now());
        let watchers = state.watchers.entry(key.clone()).or_default();
        watchers.push(Some(manager), sender);
        hints
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let queued = state.queued(key, now);
        let holder = state.live(key, now).and_then(|entry| entry.holder(now));
        Ok(holder.map(|holder| holder.with_queued(queued)))
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_released = match holder {
            Some(holder) => {
                let released = state.end(key, now, |held| held.lease.to_string() == holder);
                released != Released::NotHeld
            }
            None => {
                let is_held = state.live(key, now).is_some();
                if is_held {
                    state.free(key, now);
                }
                is_held
            }
        };
        Ok(match is_released {
            true => ForceReleased::Released,
            false => ForceReleased::NotHeld,
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE.with_shared().with_permits()
    }
}

impl Node for Memory {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        let counter = |state: &mut MemoryState| {
            state.fence = fence.after(state.fence);
            state.fence.unwrap_or(0)
        };
        let now = Instant::now();
        Ok(self.state.lock().try_acquire(request, now, counter))
    }

    fn server_id(&self) -> Option<u64> {
        Some(Arc::as_ptr(&self.state).addr() as u64)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Memory")
            .field("leases", &state.leases.len())
            .field("watched_keys", &state.watchers.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
