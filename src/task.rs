//! The only place that spawns: runtimes, and background tasks in them.
//!
//! | tasks | where they run |
//! |---|---|
//! | of a manager | its home: [`OwnThread`], or a [`Runtime`] that the program or a test gives it |
//! | of a quorum, of a dashboard | the runtime of the caller: [`spawn_here`] |
//! | of connections to a server | a thread of this crate, or a multi-thread runtime: [`Background`] |

mod own_thread;
mod timer;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use tokio::runtime::RuntimeFlavor;
pub(crate) use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::oneshot;

#[cfg(any(feature = "postgres", feature = "redis"))]
use own_thread::shared_thread;
pub(crate) use own_thread::{OwnThread, has_ended};
pub(crate) use timer::Timer;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use timer::{timeout, timeout_at};

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

    /// Returns `true` if the runtime has threads of its own, and so does not idle.
    pub(crate) fn has_own_threads(&self) -> bool {
        match self {
            Self::Tokio(handle) => handle.runtime_flavor() == RuntimeFlavor::MultiThread,
            #[cfg(feature = "test-util")]
            Self::Simulated(_) => true,
        }
    }

    /// Returns `true` if timers work in this runtime, which must be that of the caller.
    ///
    /// Each thread remembers the last answer.
    pub(crate) fn has_timers(&self) -> bool {
        thread_local! {
            static LAST: Cell<Option<(RuntimeId, bool)>> = const { Cell::new(None) };
        }
        let id = self.id();
        match LAST.get() {
            Some((last, works)) if last == id => works,
            _ => {
                let works = timers_work();
                LAST.set(Some((id, works)));
                works
            }
        }
    }

    /// Returns `true` if the runtime has ended: it drops a task unpolled.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Tokio(handle) => has_ended(handle),
            #[cfg(feature = "test-util")]
            Self::Simulated(simulated) => {
                let (polled, mut outcome) = oneshot::channel::<()>();
                simulated.spawn(Box::pin(async move {
                    let _waits = polled.send(());
                }));
                outcome.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            }
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
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            // The task reports its outcome through its own state.
            Self::Tokio(handle) => drop(handle.spawn(task)),
            #[cfg(feature = "test-util")]
            Self::Simulated(simulated) => simulated.spawn(Box::pin(task)),
        }
    }

    /// Returns `true` if the runtime begins no task within `limit`. One that ended drops its tasks, and blocks none.
    #[cfg(feature = "redis")]
    pub(crate) async fn is_blocked(&self, limit: Duration) -> bool {
        let (task, begun) = with_output(async {});
        self.spawn(task);
        timeout(limit, begun).await.is_err()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(&self.id()).finish()
    }
}

/// Starts a detached task in the runtime of the caller. Without one, it is dropped unstarted: no call blocks or panics.
pub(crate) fn spawn_here(task: impl Future<Output = ()> + Send + 'static) {
    if let Some(runtime) = Runtime::current() {
        runtime.spawn(task);
    }
}

/// The error of a runtime without timers, which deadlines and a watchdog need.
#[derive(Debug, thiserror::Error)]
#[error("Tokio runtime without timers: build it with `enable_time` or `enable_all`")]
pub(crate) struct NoTimers;

/// Returns `true` if timers work in the current runtime.
pub(crate) fn timers_work() -> bool {
    // Tokio has no query for this: creating a timer panics where timers are disabled. With `panic = "abort"`, that ends the
    // process: `guide::runtimes`.
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

/// Blocks the thread of the caller.
fn sleep_here(duration: Duration) {
    std::thread::sleep(duration);
}

/// Calls `tick` after each period, on a thread that ends when the call returns `false`.
///
/// # Errors
///
/// Returns an error if the system allows no further thread.
#[cfg(feature = "metrics")]
pub(crate) fn every(
    period: Duration,
    mut tick: impl FnMut() -> bool + Send + 'static,
) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("tower-lock-metrics".to_owned());
    let started = thread.spawn(move || {
        loop {
            std::thread::sleep(period);
            if !tick() {
                return;
            }
        }
    });
    // Detached: it ends with the process.
    started.map(drop)
}

/// A thread with a runtime that no caller can delay or end. It runs connections and the tasks that own
/// them.
///
/// A connection can be used from any runtime, but only the runtime that dialled it moves its bytes. A
/// runtime of the program may idle, block or end while other runtimes wait for a reply.
///
/// The first task starts the thread. All backends of the process share it, and it never ends. If the
/// system allows no further thread, tasks run in the runtime of the caller. Without one, they are dropped unstarted.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Background;

#[cfg(any(feature = "postgres", feature = "redis"))]
impl Background {
    /// Starts a detached task.
    pub(crate) fn spawn(self, task: impl Future<Output = ()> + Send + 'static) {
        // Logs go to the subscriber of the caller, as in a runtime of the program.
        #[cfg(feature = "tracing")]
        let task = tracing::instrument::WithSubscriber::with_current_subscriber(task);
        let handle = shared_thread().or_else(|| Handle::try_current().ok());
        if let Some(handle) = handle {
            drop(handle.spawn(task));
        }
    }

    /// Starts a detached task in the runtime of the caller if that runs on threads of its own, and on the thread
    /// otherwise.
    ///
    /// For the path of each command, because a change of threads costs more than a script call. Such a
    /// runtime does not idle. If it ends, or all its threads block, the owner of the task starts it again.
    #[cfg(feature = "redis")]
    pub(crate) fn spawn_near(self, task: impl Future<Output = ()> + Send + 'static) {
        match self.near() {
            Some(near) => near.spawn(task),
            None => self.spawn(task),
        }
    }

    /// Starts a task as [`spawn_near`](Self::spawn_near), but on the thread if the runtime of the caller has no I/O.
    /// Returns the runtime of the caller if the task is there.
    #[cfg(feature = "redis")]
    pub(crate) fn spawn_io_near(
        self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<Runtime> {
        let near = self.near().filter(|_| io_works());
        match &near {
            Some(near) => near.spawn(task),
            None => self.spawn(task),
        }
        near
    }

    /// Returns the runtime in which [`spawn_near`](Self::spawn_near) starts a task, or `None` for the
    /// thread.
    #[cfg(feature = "redis")]
    pub(crate) fn near(self) -> Option<Runtime> {
        let handle = Handle::try_current().ok();
        let near = handle.filter(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread);
        near.map(Runtime::Tokio)
    }

    /// Runs a task and returns its output, or `None` if it panicked or its runtime ended.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the task runs to its end.
    pub(crate) async fn run<F>(self, task: F) -> Option<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (task, output) = with_output(task);
        self.spawn(task);
        output.await
    }
}

/// Returns `true` if I/O works in the current runtime.
#[cfg(feature = "redis")]
fn io_works() -> bool {
    let Ok(socket) = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)) else {
        return false;
    };
    // As for timers, registering a socket panics where I/O is disabled.
    socket.set_nonblocking(true).is_ok()
        && catch_unwind(|| drop(tokio::net::UdpSocket::from_std(socket))).is_ok()
}

/// Returns a task that runs `work`, and a future of its output, which is `None` if the task is dropped.
pub(crate) fn with_output<F: Future>(
    work: F,
) -> (
    impl Future<Output = ()>,
    impl Future<Output = Option<F::Output>>,
) {
    let (sender, output) = oneshot::channel();
    let task = async move {
        // The caller may be dropped.
        drop(sender.send(work.await));
    };
    (task, async move { output.await.ok() })
}

/// Repeats a step until it returns `false`. A panic in code of the program ends one step only, and then continues.
pub(crate) fn until_false(mut step: impl FnMut() -> bool) {
    let mut panicked = None;
    loop {
        match catch_unwind(AssertUnwindSafe(&mut step)) {
            Ok(true) => {}
            Ok(false) => break,
            Err(panic) => panicked = panicked.or(Some(panic)),
        }
    }
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}

/// Returns `true` if the task that is dropped has panicked.
pub(crate) fn is_panicking() -> bool {
    std::thread::panicking()
}

/// Returns a task that runs in the present span, and whose logs go where those of the caller go.
pub(crate) fn with_caller_context<F: Future>(task: F) -> impl Future<Output = F::Output> {
    #[cfg(feature = "tracing")]
    let task = {
        use tracing::Instrument as _;
        use tracing::instrument::WithSubscriber as _;
        task.in_current_span().with_current_subscriber()
    };
    task
}

/// Returns a callback whose logs go where those of the caller go, on any thread.
#[cfg(feature = "redis")]
pub(crate) fn with_caller_logs(call: impl Fn() + Send + Sync) -> impl Fn() + Send + Sync {
    #[cfg(feature = "tracing")]
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    #[cfg(feature = "tracing")]
    let call = move || tracing::dispatcher::with_default(&dispatch, &call);
    call
}

#[cfg(test)]
mod tests;
