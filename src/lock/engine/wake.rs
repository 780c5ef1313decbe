//! The alarm of a background task: when it wakes, and whether it runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::lock::clock::{AtomicMoment, Clock, Moment};

/// The longest sleep of the task: the longest delay until a resume is detected.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The next wake-up of the watchdog.
#[derive(Debug)]
pub(crate) struct Alarm {
    /// When the task wakes, or [`NOT_SET`]. Only the start of a round moves it back, so a new task keeps
    /// the time that was set for its predecessor.
    wakes_at: AtomicMoment,
    /// Notified when the task has to wake earlier than that.
    pub(crate) earlier: Notify,
    running: AtomicBool,
}

/// Stands for no time, because an atomic holds no `Option`. Any time that is set is earlier, so the earlier of the
/// two is the time to wake.
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
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }

    /// Returns `true` if the task does not run, so the caller has to start it.
    pub(crate) fn start(&self) -> bool {
        // The task mostly runs, and a read costs less than a write.
        !self.is_running() && !self.running.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn stopped(&self) {
        self.running.store(false, Ordering::SeqCst);
    }

    /// Makes the task wake at `at` or earlier. Notifies it if that is a change, and before the end of any sleep.
    pub(crate) fn set(&self, at: Moment, clock: Clock) {
        if self.wakes_at.load() > at
            && self.wakes_at.no_later_than(at)
            // After the change: a sleep that began before it is over by then.
            && at < clock.now() + TICK
        {
            self.earlier.notify_one();
        }
    }

    /// Returns when the task has to wake, or `None` if that is not set.
    pub(crate) fn time(&self) -> Option<Moment> {
        let at = self.wakes_at.load();
        (at != NOT_SET).then_some(at)
    }

    /// Clears the time at the start of a round. Later calls of [`set`](Self::set) apply to the next round.
    pub(crate) fn clear(&self) {
        self.wakes_at.store(NOT_SET);
    }

    pub(crate) fn next(&self, at: Moment) {
        self.wakes_at.no_later_than(at);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_behind_next_tick_is_not_notified() {
        let alarm = Alarm::default();
        let (now, notified) = (Moment::now(), || alarm.earlier.notified().now_or_never());
        alarm.set(now + TICK, Clock::Runtime);
        assert_eq!((alarm.time(), notified()), (Some(now + TICK), None));
        alarm.set(now + TICK / 2, Clock::Runtime);
        assert_eq!((alarm.time(), notified()), (Some(now + TICK / 2), Some(())));
        alarm.set(now, Clock::Runtime);
        assert_eq!((alarm.time(), notified()), (Some(now), Some(())));
    }
}
