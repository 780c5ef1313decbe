//! When a background task wakes, and whether it runs.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::clock::{AtomicMoment, Moment};

/// When the watchdog of one runtime looks again.
#[derive(Debug)]
pub(super) struct Alarm {
    /// Only a round puts it off: what one task was told, the next one keeps. `None`, as the last moment
    /// there is: not set.
    wakes_at: AtomicMoment,
    /// Notified when the task has to look earlier than that.
    pub(super) earlier: Notify,
    running: AtomicBool,
}

const NOT_SET: Moment = Moment::LAST;

impl Default for Alarm {
    fn default() -> Self {
        Self {
            wakes_at: AtomicMoment::new(NOT_SET),
            earlier: Notify::new(),
            running: AtomicBool::new(false),
        }
    }
}

impl Alarm {
    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }

    /// Returns `true` if the task does not run, and has to be started by the caller.
    pub(super) fn start(&self) -> bool {
        // It mostly runs, and to look costs less than to write.
        !self.is_running() && !self.running.swap(true, Ordering::SeqCst)
    }

    pub(super) fn stopped(&self) {
        self.running.store(false, Ordering::SeqCst);
    }

    /// The task looks no later than `at`.
    pub(super) fn set(&self, at: Moment) {
        if self.wakes_at.load() > at && self.wakes_at.no_later_than(at) {
            self.earlier.notify_one();
        }
    }

    /// Returns when the task has to look; `None` if that is not known.
    pub(super) fn time(&self) -> Option<Moment> {
        let at = self.wakes_at.load();
        (at != NOT_SET).then_some(at)
    }

    /// A round begins: from here on, what is told is for the next one.
    pub(super) fn clear(&self) {
        self.wakes_at.store(NOT_SET);
    }

    pub(super) fn next(&self, at: Moment) {
        self.wakes_at.no_later_than(at);
    }
}
