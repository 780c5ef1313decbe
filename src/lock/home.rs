//! The runtimes in which a manager does background work.
//!
//! Work for the guards and waiters of a runtime runs in that runtime, so that they depend on no other: a
//! runtime that idles, blocks or ends holds up its own work only. With
//! [`LockManagerBuilder::runtime`](crate::LockManagerBuilder::runtime) all of it runs in one that the
//! program names.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::release_queue::ReleaseQueue;
use super::unresolved::Unresolved;
use super::wake::Alarm;
use crate::task::{Runtime, RuntimeId, timers_work};
use crate::{Error, ErrorKind};

/// One runtime, and the state of the background tasks in it.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) runtime: Runtime,
    pub(super) id: RuntimeId,
    pub(super) watchdog: Alarm,
    pub(super) releases: ReleaseQueue,
    pub(super) unresolved: Unresolved,
}

#[derive(Debug)]
pub(super) struct Homes {
    /// Distinguishes managers in the memory of a thread.
    manager: u64,
    fixed: Option<Arc<Home>>,
    known: Mutex<Vec<Arc<Home>>>,
    /// How many runtimes have ended.
    ended: AtomicU64,
}

/// The runtime for work that begins now.
#[derive(Debug, Clone, Copy)]
pub(super) enum Current {
    Known(RuntimeId),
    /// It was not known before: work of runtimes that have ended can go on in it.
    New(RuntimeId),
}

/// There is no runtime for background work.
#[derive(Debug, thiserror::Error)]
#[error("no Tokio runtime: acquire inside of one, or set `LockManagerBuilder::runtime`")]
struct NoRuntime;

/// The runtime cannot serve a watchdog.
#[derive(Debug, thiserror::Error)]
#[error("Tokio runtime without timers: build it with `enable_time` or `enable_all`")]
pub(super) struct NoTimers;

thread_local! {
    /// The manager, how many of its runtimes had ended, and the runtime that was last found to be in order
    /// on this thread.
    static LAST: Cell<Option<(u64, u64, RuntimeId)>> = const { Cell::new(None) };
}

impl Home {
    fn new(runtime: Runtime) -> Self {
        Self {
            id: runtime.id(),
            runtime,
            watchdog: Alarm::default(),
            releases: ReleaseQueue::default(),
            unresolved: Unresolved::default(),
        }
    }

    /// Returns `true` if tasks can still run in it.
    fn is_alive(&self) -> bool {
        if self.watchdog.is_running() {
            return true;
        }
        let probe = Probe::default();
        let (polled, dropped) = (Arc::clone(&probe.polled), Arc::clone(&probe.dropped));
        self.runtime.spawn(async move {
            probe.polled.store(true, Ordering::SeqCst);
        });
        // A runtime that has ended drops what it is given, unpolled.
        polled.load(Ordering::SeqCst) || !dropped.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
struct Probe {
    polled: Arc<AtomicBool>,
    dropped: Arc<AtomicBool>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

impl Homes {
    pub(super) fn new(fixed: Option<Runtime>) -> Self {
        static MANAGERS: AtomicU64 = AtomicU64::new(0);
        let fixed = fixed.map(|runtime| Arc::new(Home::new(runtime)));
        Self {
            manager: MANAGERS.fetch_add(1, Ordering::Relaxed),
            known: Mutex::new(fixed.iter().cloned().collect()),
            fixed,
            ended: AtomicU64::new(0),
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<Home>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the runtime for work that begins here.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](ErrorKind::Misconfigured) outside of a runtime, and in one without timers.
    pub(super) fn current(&self) -> Result<Current, Error> {
        if let Some(fixed) = &self.fixed {
            return Ok(Current::Known(fixed.id));
        }
        let error = Error::new(ErrorKind::Misconfigured);
        let Some(runtime) = Runtime::current() else {
            return Err(error.with_source(NoRuntime));
        };
        let id = runtime.id();
        let last = Some((self.manager, self.ended.load(Ordering::Acquire), id));
        if LAST.get() != last {
            LAST.set(last);
            if self.get(id).is_none() {
                if !timers_work() {
                    LAST.set(None);
                    return Err(error.with_source(NoTimers));
                }
                self.register(runtime);
                return Ok(Current::New(id));
            }
        }
        Ok(Current::Known(id))
    }

    fn register(&self, runtime: Runtime) {
        let id = runtime.id();
        // Outside of the mutex: a runtime that has ended drops tasks, which call back.
        let known = self.known().clone();
        let ended: Vec<_> = known.iter().filter(|home| !home.is_alive()).collect();
        let mut known = self.known();
        known.retain(|home| !ended.iter().any(|ended| ended.id == home.id));
        if known.iter().all(|home| home.id != id) {
            known.push(Arc::new(Home::new(runtime)));
        }
    }

    pub(super) fn get(&self, id: RuntimeId) -> Option<Arc<Home>> {
        self.known().iter().find(|home| home.id == id).cloned()
    }

    /// Returns any runtime that has not ended.
    pub(super) fn any(&self) -> Option<Arc<Home>> {
        self.known().last().cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Home>> {
        self.known().clone()
    }

    /// A runtime has ended.
    pub(super) fn end(&self, id: RuntimeId) {
        self.known().retain(|home| home.id != id);
        self.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
