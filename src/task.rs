//! The one place that spawns: runtimes, and background tasks in them.

use std::fmt;
use std::future::Future;
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub(crate) use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::oneshot;

#[cfg(feature = "test-util")]
use crate::test_util::{Current, SimulatedRuntime};

/// A runtime in which background tasks run.
#[derive(Clone)]
pub(crate) enum Runtime {
    Tokio(Handle),
    #[cfg(feature = "test-util")]
    Simulated(std::sync::Arc<dyn SimulatedRuntime>),
}

/// The identity of a runtime, unique among those that run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RuntimeId {
    Tokio(tokio::runtime::Id),
    #[cfg(feature = "test-util")]
    Simulated(u64),
}

impl Runtime {
    /// Returns the runtime in which the caller runs, if any.
    pub(crate) fn current() -> Option<Self> {
        #[cfg(feature = "test-util")]
        match crate::test_util::current() {
            Some(Current::Simulated(simulated)) => return Some(Self::Simulated(simulated)),
            Some(Current::Outside) => return None,
            None => {}
        }
        Handle::try_current().ok().map(Self::Tokio)
    }

    pub(crate) fn id(&self) -> RuntimeId {
        match self {
            Self::Tokio(handle) => RuntimeId::Tokio(handle.id()),
            #[cfg(feature = "test-util")]
            Self::Simulated(simulated) => RuntimeId::Simulated(simulated.id()),
        }
    }

    /// Makes this runtime the one in which this thread creates timers, and starts tasks, until the guard is
    /// dropped.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        match self {
            Self::Tokio(handle) => Some(handle.enter()),
            #[cfg(feature = "test-util")]
            Self::Simulated(_) => None,
        }
    }

    /// Starts a detached task. A runtime that has ended drops it unstarted.
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match self {
            // The outcome of a detached task reaches whoever needs it through its own state.
            Self::Tokio(handle) => drop(handle.spawn(task)),
            #[cfg(feature = "test-util")]
            Self::Simulated(simulated) => simulated.spawn(Box::pin(task)),
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(&self.id()).finish()
    }
}

/// Returns `true` if timers work in the current runtime.
pub(crate) fn timers_work() -> bool {
    // There is no other way to ask: creating a timer panics where they are disabled.
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

/// Completes after `duration`, by a thread: where no runtime has timers.
pub(crate) async fn sleep_on_thread(duration: Duration) {
    let (over, slept) = oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(duration);
        // Whoever waited may be gone.
        let _gone = over.send(());
    });
    // The thread sends before it ends.
    drop(slept.await);
}

/// Starts background tasks, also from a `Drop` outside of any runtime.
///
/// Remembers the runtime of the last call. Where there is none, or it is gone, the task is
/// dropped unstarted: nothing blocks, nothing panics, and the leases run out.
#[derive(Debug, Default)]
pub(crate) struct Spawner {
    last: Mutex<Option<Runtime>>,
}

impl Spawner {
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = Runtime::current() {
            *last = Some(current);
        }
        let runtime = last.clone();
        drop(last);
        if let Some(runtime) = runtime {
            runtime.spawn(task);
        }
    }
}
