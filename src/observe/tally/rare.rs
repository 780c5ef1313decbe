//! The counts that requests do not write.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use tokio::time::Instant;

use super::histogram::Histogram;
use crate::mutex::Mutex;
use crate::observe::outcome::{Command, CommandOutcome, Forced, Permit};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Rare {
    pub(super) force_releases: [AtomicU64; Forced::COUNT],
    pub(super) unlocked: [AtomicU64; Permit::COUNT],
    /// The time of the backend's commands, allocated when the first one of a kind ends.
    pub(super) commands: [[OnceLock<Box<Histogram>>; CommandOutcome::COUNT]; Command::COUNT],
    pub(super) sends_commands: AtomicBool,
    pub(super) watchdog_lag: Mutex<Longest>,
}

/// The longest of the durations of the last one to two minutes, so that each scrape of a server of metrics sees it.
#[derive(Debug, Default)]
pub(super) struct Longest {
    /// The start of the current minute, or `None` before the first duration.
    since: Option<Instant>,
    current: Duration,
    previous: Duration,
}

impl Longest {
    pub(super) fn add(&mut self, duration: Duration, now: Instant) {
        self.turn(now);
        self.current = self.current.max(duration);
    }

    pub(super) fn at(&mut self, now: Instant) -> Duration {
        self.turn(now);
        self.current.max(self.previous)
    }

    fn turn(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.duration_since(since);
        if elapsed < MINUTE {
            return;
        }
        let current = std::mem::take(&mut self.current);
        self.previous = if elapsed < 2 * MINUTE {
            current
        } else {
            Duration::ZERO
        };
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_delay_is_kept_for_one_minute() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut longest = Longest::default();
        longest.add(2 * second, start);
        longest.add(second, start + 59 * second);
        assert_eq!(longest.at(start + 59 * second), 2 * second);
        assert_eq!(longest.at(start + 60 * second), 2 * second);
        longest.add(second, start + 119 * second);
        assert_eq!(longest.at(start + 119 * second), 2 * second);
        assert_eq!(longest.at(start + 120 * second), second);
        // Nothing was recorded or read for two minutes.
        assert_eq!(longest.at(start + 240 * second), Duration::ZERO);
    }
}
