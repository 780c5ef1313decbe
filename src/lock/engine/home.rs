//! The one place of the background work of a manager.
//!
//! | the manager was built | home |
//! |---|---|
//! | with [`LockManagerBuilder::runtime`](crate::LockManagerBuilder::runtime) | that runtime |
//! | in a runtime whose clock is paused, as in a test | that runtime; once it has ended, the next one that acquires |
//! | otherwise | a thread of its own, from the first task until the last handle, guard and task have ended |
//! | otherwise, while the system allows no further thread | the runtime of a caller until it ends; without one, no task runs |
//!
//! Renewals, retries, acquire loops and deadlines run at home, whatever the runtimes of the callers do.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::release_queue::ReleaseQueue;
use super::unconfirmed::UnconfirmedReleases;
use super::wake::Alarm;
use crate::lock::clock::{AtomicMoment, Clock, Moment, Span, is_clock_paused};
use crate::mutex::Mutex;
use crate::task::{EnterGuard, Handle, OwnThread, Runtime, has_ended};

/// The place of the background work, and the state of its tasks.
pub(crate) struct Home {
    kind: Kind,
    pub(crate) clock: Clock,
    /// Whether a task was dropped before its end. The home may have ended, or code of the program has panicked in it.
    suspect: AtomicBool,
    /// Until when the last check of the process counts.
    checked_until: AtomicMoment,
    pub(crate) watchdog: Alarm,
    pub(crate) releases: ReleaseQueue,
    pub(crate) unconfirmed: UnconfirmedReleases,
}

/// How long a check of the process counts. The fork of a program of a few pages takes 40 µs. If another thread checks during
/// a fork, an acquire in the first microseconds of the child can wait without an error.
const CHECKED: Span = Span::new(Duration::from_micros(20));

enum Kind {
    Own(OwnThread),
    Given(Runtime),
    Paused(Mutex<Handle>),
}

impl Home {
    pub(crate) fn new(given: Option<Runtime>) -> Self {
        let kind = match (given, Handle::try_current()) {
            (Some(given), _) => Kind::Given(given),
            (None, Ok(handle)) if is_clock_paused() => Kind::Paused(Mutex::new(handle)),
            (None, _) => Kind::Own(OwnThread::new()),
        };
        Self {
            clock: match &kind {
                Kind::Own(_) => Clock::System,
                Kind::Given(_) | Kind::Paused(_) => Clock::Runtime,
            },
            kind,
            suspect: AtomicBool::new(false),
            checked_until: AtomicMoment::new(Moment::FIRST),
            watchdog: Alarm::default(),
            releases: ReleaseQueue::default(),
            unconfirmed: UnconfirmedReleases::default(),
        }
    }

    /// Starts a detached task. A home that has ended drops it unstarted.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.kind {
            Kind::Own(thread) => thread.spawn(task),
            Kind::Given(runtime) => runtime.spawn(task),
            Kind::Paused(handle) => {
                // A runtime that has ended drops the task here, which may start another one.
                let handle = handle.lock().clone();
                drop(handle.spawn(task));
            }
        }
    }

    /// Starts a detached task in the runtime of the caller if that has timers and threads of its own, and at home
    /// otherwise.
    ///
    /// For the commands that a caller awaits, because a change of threads costs more than a script call. A runtime
    /// with one thread may idle.
    pub(crate) fn spawn_near(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.near() {
            Some(near) => near.spawn(task),
            None => self.spawn(task),
        }
    }

    /// Lets this thread create timers and start tasks as the thread of the manager does, until the guard is dropped. `None`
    /// for any other home, and before its first task.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis only"))]
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        match &self.kind {
            Kind::Own(thread) => thread.enter(),
            Kind::Given(_) | Kind::Paused(_) => None,
        }
    }

    /// Returns the runtime of the caller if its commands are sent there.
    pub(crate) fn near(&self) -> Option<Runtime> {
        if matches!(self.kind, Kind::Paused(_)) {
            return None;
        }
        // The futures of commands may use timers.
        let near = Runtime::current().filter(Runtime::has_own_threads);
        near.filter(Runtime::has_timers)
    }

    /// Returns `true` if nothing ensures that tasks at home run: the program drives that runtime.
    pub(crate) fn may_not_run(&self) -> bool {
        matches!(self.kind, Kind::Given(_))
    }

    /// Records that a task was dropped before its end. The next acquire checks the home, and starts the tasks again.
    pub(crate) fn task_was_dropped(&self) {
        self.suspect.store(true, Ordering::SeqCst);
    }

    /// Returns `true` if the home has ended and no other one follows.
    pub(crate) fn is_over(&self) -> bool {
        match &self.kind {
            Kind::Given(runtime) => runtime.has_ended(),
            Kind::Own(_) | Kind::Paused(_) => false,
        }
    }

    /// Returns `true` if this process has the thread of the home: a fork copies none.
    pub(crate) fn is_of_this_process(&self) -> bool {
        match &self.kind {
            Kind::Own(thread) => thread.is_of_this_process(),
            Kind::Given(_) | Kind::Paused(_) => true,
        }
    }

    /// Does the same, by a system call only if the last one was some time before `now`, which has just been read.
    #[inline]
    pub(crate) fn is_of_this_process_at(&self, now: Moment) -> bool {
        if now < self.checked_until.load() {
            return true;
        }
        let is_of_this_process = self.is_of_this_process();
        if is_of_this_process {
            self.checked_until.no_earlier_than(now + CHECKED);
        }
        is_of_this_process
    }

    /// Returns `true` if the home needs a check. Only tests have one with a paused clock.
    #[inline]
    pub(crate) fn may_have_ended(&self) -> bool {
        self.suspect.load(Ordering::Relaxed) || matches!(self.kind, Kind::Paused(_))
    }

    /// Checks the home. Returns `true` if its tasks may have to be started again, or `None` if it has ended.
    pub(crate) fn check(&self) -> Option<bool> {
        // Cleared before the check, which an end in between does not escape.
        let was_suspect = self.suspect.swap(false, Ordering::SeqCst);
        let has_moved = self.has_moved();
        if has_moved.is_none() {
            self.task_was_dropped();
            if self.is_over() {
                self.unconfirmed.abandon();
            }
        }
        has_moved.map(|has_moved| has_moved || was_suspect)
    }

    /// Returns `true` if the home has ended with its paused clock: the runtime of the caller is the home from now on.
    /// Returns `None` if it has ended and no other one follows.
    fn has_moved(&self) -> Option<bool> {
        let home = match &self.kind {
            Kind::Own(thread) => return thread.runs().then_some(false),
            Kind::Given(runtime) => return (!runtime.has_ended()).then_some(false),
            Kind::Paused(home) => home,
        };
        let mut home = home.lock();
        match Handle::try_current() {
            Ok(here) if here.id() == home.id() => Some(false),
            _ if !has_ended(&home) => Some(false),
            Ok(here) => {
                *home = here;
                Some(true)
            }
            Err(_) => None,
        }
    }
}

/// The home of the manager has ended: the runtime that was set, or that of an earlier test. Or the system allows no
/// further thread, and the caller has no runtime.
#[derive(Debug, thiserror::Error)]
#[error("runtime of the manager was shut down, or its thread could not be started")]
pub(crate) struct HomeEnded;

/// The manager came from the parent process.
#[derive(Debug, thiserror::Error)]
#[error("process was forked: build the manager in the child, which has no thread of its parent")]
pub(crate) struct Forked;

#[cfg(test)]
mod tests;
