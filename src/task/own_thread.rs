//! The thread of one manager.

use std::future::Future;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio::sync::oneshot;

use crate::mutex::Mutex;

/// A thread with a runtime of its own, which the first task starts. It ends when this value is dropped.
///
/// While the system allows no further thread, tasks run in the runtime of a caller. Without one, they are dropped
/// unstarted.
pub(crate) struct OwnThread {
    started: OnceLock<Started>,
    start: StartThread,
    /// The runtime of a caller that takes the place of the thread.
    instead: Mutex<Option<Handle>>,
    /// Where the logs of the tasks go: to the subscriber of the thread that created this value.
    #[cfg(feature = "tracing")]
    dispatch: tracing::Dispatch,
}

type Drive = Box<dyn FnOnce(&Runtime) + Send>;
type StartThread = fn(Drive) -> io::Result<Handle>;

struct Started {
    handle: Handle,
    /// The thread ends when this is dropped.
    _until: oneshot::Sender<()>,
    /// The process that has the thread.
    process: AtomicU32,
}

impl OwnThread {
    pub(crate) fn new() -> Self {
        Self::started_by(|drive| start_thread(drive))
    }

    fn started_by(start: StartThread) -> Self {
        Self {
            started: OnceLock::new(),
            start,
            instead: Mutex::default(),
            #[cfg(feature = "tracing")]
            dispatch: tracing::dispatcher::get_default(Clone::clone),
        }
    }

    /// Starts a detached task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.started.get() {
            Some(started) => drop(started.handle.spawn(task)),
            None => self.spawn_first(task),
        }
    }

    #[cold]
    fn spawn_first(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(handle) = self.handle() {
            drop(handle.spawn(task));
        }
    }

    /// Makes the runtime of the thread the one in which the caller creates timers and starts tasks. `None` before the first
    /// task.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis only"))]
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        Some(self.started.get()?.handle.enter())
    }

    /// Returns `true` if tasks run. Starts the thread if necessary.
    pub(crate) fn runs(&self) -> bool {
        self.handle().is_some()
    }

    /// Returns `true` if this process has the thread: a fork copies none.
    pub(crate) fn is_of_this_process(&self) -> bool {
        let started = self.started.get();
        started.is_none_or(|it| it.process.load(Ordering::Relaxed) == std::process::id())
    }

    /// As in a fork of this process, which has another number.
    #[cfg(test)]
    pub(crate) fn pretend_fork(&self) {
        let started = self.started.get().expect("it has started");
        started.process.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the runtime of the thread, which this call starts if necessary, or that of a caller.
    fn handle(&self) -> Option<Handle> {
        if self.started.get().is_none()
            && let Ok(started) = self.start()
        {
            // If two start at the same time, one of them ends at once.
            let _started = self.started.set(started);
        }
        match self.started.get() {
            Some(started) => Some(started.handle.clone()),
            None => self.instead(),
        }
    }

    fn instead(&self) -> Option<Handle> {
        let mut instead = self.instead.lock();
        if instead.as_ref().is_none_or(has_ended) {
            *instead = Handle::try_current().ok();
        }
        instead.clone()
    }

    fn start(&self) -> io::Result<Started> {
        let (until, ended) = oneshot::channel::<()>();
        let until_ended = async move {
            // The sender sends nothing.
            let _dropped = ended.await;
        };
        #[cfg(feature = "tracing")]
        let drive: Drive = {
            let dispatch = self.dispatch.clone();
            // A subscriber for all threads may be set later.
            match dispatch.is::<tracing::subscriber::NoSubscriber>() {
                true => Box::new(move |runtime| runtime.block_on(until_ended)),
                false => Box::new(move |runtime| {
                    tracing::dispatcher::with_default(&dispatch, || runtime.block_on(until_ended));
                }),
            }
        };
        #[cfg(not(feature = "tracing"))]
        let drive: Drive = Box::new(move |runtime| runtime.block_on(until_ended));
        Ok(Started {
            handle: (self.start)(drive)?,
            _until: until,
            process: std::process::id().into(),
        })
    }
}

/// Starts a thread on which `run` drives a new runtime, and returns the handle of that runtime.
fn start_thread(run: impl FnOnce(&Runtime) + Send + 'static) -> io::Result<Handle> {
    let (give, take) = std::sync::mpsc::channel::<Runtime>();
    let thread = std::thread::Builder::new().name("tower-lock".to_owned());
    let run = move || {
        if let Ok(runtime) = take.recv() {
            run(&runtime);
            runtime.shutdown_background();
        }
    };
    // Detached. It starts before there is a runtime, whose drop panics in another runtime.
    drop(thread.spawn(run)?);
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    let handle = runtime.handle().clone();
    match give.send(runtime) {
        Ok(()) => Ok(handle),
        Err(_) => unreachable!("BUG: the thread waits for its runtime"),
    }
}

/// Returns the runtime of a thread that never ends, which the first call starts. All of the process shares it. `None` if
/// the system allows no further thread.
pub(super) fn shared_thread() -> Option<Handle> {
    static STARTED: Mutex<Option<Handle>> = Mutex::new(None);
    let mut started = STARTED.lock();
    if started.is_none() {
        *started = start_thread(|runtime| runtime.block_on(std::future::pending::<()>())).ok();
    }
    started.clone()
}

/// Returns `true` if a runtime has ended: it drops a task unpolled.
pub(crate) fn has_ended(runtime: &Handle) -> bool {
    let task = runtime.spawn(std::future::pending::<()>());
    let has_ended = task.is_finished();
    task.abort();
    has_ended
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn no_thread(_drive: Drive) -> io::Result<Handle> {
        Err(io::Error::other("no further thread"))
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().expect("a runtime")
    }

    /// Returns `true` if a task runs in the present runtime.
    async fn runs_here(thread: &OwnThread) -> bool {
        let (tell, told) = oneshot::channel();
        thread.spawn(async move { tell.send(()).expect("it is awaited") });
        told.await.is_ok()
    }

    #[test]
    fn task_without_thread_runs_in_next_runtime() {
        let thread = OwnThread::started_by(no_thread);
        assert!(!thread.runs(), "no runtime");
        for _ in 0..2 {
            runtime().block_on(async {
                assert!(thread.runs());
                assert!(runs_here(&thread).await);
            });
        }
        // The runtime has ended.
        assert!(!thread.runs());
        assert!(thread.is_of_this_process());
    }

    #[test]
    fn thread_of_other_process_is_detected() {
        let thread = OwnThread::new();
        assert!(thread.is_of_this_process(), "it has not started");
        let (tell, told) = mpsc::channel();
        thread.spawn(async move { tell.send(()).expect("it is awaited") });
        assert!(told.recv_timeout(Duration::from_secs(20)).is_ok());
        assert!(thread.is_of_this_process());
        thread.pretend_fork();
        assert!(!thread.is_of_this_process());
    }
}
