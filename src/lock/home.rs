//! The runtimes in which a manager runs background work.
//!
//! Work for the guards and waiters of a runtime runs in that runtime, so a runtime that idles, blocks or
//! ends delays only its own work. With
//! [`LockManagerBuilder::runtime`](crate::LockManagerBuilder::runtime), all work runs in the given
//! runtime.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::clock::Moment;
use super::lease::LeaseNumber;
use super::line::Line;
use super::release_queue::ReleaseQueue;
use super::unresolved::Unresolved;
use super::wake::Alarm;
use crate::task::{EnterGuard, NoTimers, Runtime, RuntimeId, timers_work};
use crate::{Error, ErrorKind, LockKey};

/// One runtime, and the state of the background tasks in it.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) runtime: Runtime,
    pub(super) id: RuntimeId,
    pub(super) watchdog: Alarm,
    pub(super) releases: ReleaseQueue,
    /// Another runtime retries its own, because this one may idle. So each key has one retry per backoff step and
    /// runtime.
    pub(super) unresolved: Unresolved,
    /// Where its acquire loops for permits wait.
    pub(super) line: Line,
    /// Whether the runtime is no longer among the known ones.
    ended: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Homes {
    fixed: Option<Arc<Home>>,
    known: Mutex<Vec<Arc<Home>>>,
    /// The first of them, which most programs look up only, without the mutex.
    first: OnceLock<Arc<Home>>,
    /// Identifies the manager and its ended runtimes in [`LAST`]: each end of a runtime draws another number.
    version: AtomicU64,
    /// Leases of unknown fate for which no runtime was left. The next runtime resolves them.
    pub(super) unresolved: Unresolved,
}

/// The runtime for work that begins now.
#[derive(Debug, Clone, Copy)]
pub(super) enum Current {
    Known(RuntimeId),
    /// A runtime seen for the first time, which can continue the work of ended runtimes.
    New(RuntimeId),
}

/// The acquire runs outside a runtime, and none is set for background work.
#[derive(Debug, thiserror::Error)]
#[error("no Tokio runtime: acquire inside one or set `LockManagerBuilder::runtime`")]
struct NoRuntime;

thread_local! {
    /// The runtime that this thread checked last, for the manager with this version.
    static LAST: Cell<Option<(u64, RuntimeId)>> = const { Cell::new(None) };
}

/// Returns a number that no manager has had.
fn new_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    VERSIONS.fetch_add(1, Ordering::Relaxed)
}

impl Home {
    fn new(runtime: Runtime) -> Self {
        Self {
            id: runtime.id(),
            runtime,
            watchdog: Alarm::default(),
            releases: ReleaseQueue::default(),
            unresolved: Unresolved::default(),
            line: Line::default(),
            ended: AtomicBool::new(false),
        }
    }

    fn is_known(&self) -> bool {
        !self.ended.load(Ordering::SeqCst)
    }

    fn leave(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Returns `true` if the runtime still accepts tasks.
    fn is_alive(&self) -> bool {
        if self.watchdog.is_running() {
            return true;
        }
        let probe = Probe::default();
        let (polled, dropped) = (Arc::clone(&probe.polled), Arc::clone(&probe.dropped));
        self.runtime.spawn(async move {
            probe.polled.store(true, Ordering::SeqCst);
        });
        // An ended runtime drops a new task unpolled.
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
        let fixed = fixed.map(|runtime| Arc::new(Home::new(runtime)));
        Self {
            known: Mutex::new(fixed.iter().cloned().collect()),
            fixed,
            first: OnceLock::new(),
            version: AtomicU64::new(new_version()),
            unresolved: Unresolved::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<Home>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the runtime for work that the caller begins, or `None` if that needs a check.
    #[inline]
    pub(super) fn checked(&self) -> Option<RuntimeId> {
        if let Some(fixed) = &self.fixed {
            return Some(fixed.id);
        }
        let id = Runtime::current()?.id();
        (LAST.get() == self.as_last(id)).then_some(id)
    }

    /// Checks the runtime for work that the caller begins.
    ///
    /// # Errors
    ///
    /// Returns [`Misconfigured`](ErrorKind::Misconfigured) outside a runtime, and in one without timers.
    pub(super) fn current(&self) -> Result<Current, Error> {
        if let Some(checked) = self.checked() {
            return Ok(Current::Known(checked));
        }
        let Some(runtime) = Runtime::current() else {
            return Err(Error::new(ErrorKind::Misconfigured).with_source(NoRuntime));
        };
        LAST.set(self.as_last(runtime.id()));
        let current = self.look_up(runtime);
        if current.is_err() {
            LAST.set(None);
        }
        current
    }

    fn as_last(&self, id: RuntimeId) -> Option<(u64, RuntimeId)> {
        Some((self.version.load(Ordering::Acquire), id))
    }

    /// Returns `true` if the caller runs inside a runtime with timers.
    pub(super) fn has_timers(&self) -> bool {
        let Some(runtime) = Runtime::current() else {
            return false;
        };
        let last = self.as_last(runtime.id());
        if LAST.get() == last {
            return true;
        }
        let works = timers_work();
        // Otherwise only an acquire may set it, which also registers the runtime.
        if works && self.is_fixed() {
            LAST.set(last);
        }
        works
    }

    fn look_up(&self, runtime: Runtime) -> Result<Current, Error> {
        let id = runtime.id();
        if self.get(id).is_some() {
            return Ok(Current::Known(id));
        }
        if !timers_work() {
            return Err(Error::new(ErrorKind::Misconfigured).with_source(NoTimers));
        }
        self.register(runtime);
        Ok(Current::New(id))
    }

    /// Returns `true` if a runtime was set for all background work.
    pub(super) fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// Enters the runtime set for background work if the caller is in no runtime with timers, so that it can
    /// poll futures that use them.
    pub(super) fn enter(&self) -> Option<EnterGuard<'_>> {
        let fixed = self.fixed.as_ref()?;
        // The timers of the caller's own runtime fire whatever the other one does.
        match self.has_timers() {
            true => None,
            false => fixed.runtime.enter(),
        }
    }

    /// Polls a future like a caller inside a runtime.
    pub(super) async fn entered<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let _entered = self.enter();
            future.as_mut().poll(cx)
        })
        .await
    }

    fn register(&self, runtime: Runtime) {
        let id = runtime.id();
        // Without the mutex: an ended runtime drops tasks, whose destructors call this type.
        let known = self.known().clone();
        let ended: Vec<_> = known.iter().filter(|home| !home.is_alive()).collect();
        let mut known = self.known();
        known.retain(|home| !ended.iter().any(|ended| ended.id == home.id));
        ended.iter().for_each(|home| home.leave());
        if known.iter().all(|home| home.id != id) {
            let home = Arc::new(Home::new(runtime));
            self.first.get_or_init(|| Arc::clone(&home));
            known.push(home);
        }
    }

    pub(super) fn get(&self, id: RuntimeId) -> Option<Arc<Home>> {
        let first = self.first.get();
        if let Some(first) = first.filter(|first| first.id == id && first.is_known()) {
            return Some(Arc::clone(first));
        }
        self.known().iter().find(|home| home.id == id).cloned()
    }

    /// Returns any runtime that has not ended.
    pub(super) fn any(&self) -> Option<Arc<Home>> {
        self.known().last().cloned()
    }

    /// Applies that a command sent at `sent_at` has released a lease, which other tasks may have to release too.
    pub(super) fn released(&self, key: &LockKey, lease: LeaseNumber, sent_at: Moment) {
        let known = self.known();
        // Mostly no runtime is concerned, and an empty list allocates nothing.
        let concerned = known.iter().filter(|home| home.unresolved.has(key, lease));
        let concerned: Vec<_> = concerned.cloned().collect();
        // Without the mutex: this may wake the caller of a shutdown.
        drop(known);
        for home in concerned {
            home.unresolved.released_elsewhere(key, lease, sent_at);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Home>> {
        self.known().clone()
    }

    /// Removes a runtime that has ended.
    pub(super) fn end(&self, id: RuntimeId) {
        self.known().retain(|home| {
            let stays = home.id != id;
            if !stays {
                home.leave();
            }
            stays
        });
        self.version.store(new_version(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
