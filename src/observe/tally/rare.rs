//! The counts that requests do not write.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::histogram::{Distribution, Histogram};
use crate::observe::outcome::{Command, CommandOutcome, Forced, Permit};

#[derive(Debug, Default)]
pub(super) struct Rare {
    pub(super) force_releases: [AtomicU64; Forced::COUNT],
    pub(super) unlocked: [AtomicU64; Permit::COUNT],
    /// The time of the backend's commands, allocated when the first one of a kind ends.
    commands: [[OnceLock<Box<Histogram>>; CommandOutcome::COUNT]; Command::COUNT],
    sends_commands: AtomicBool,
    /// The longest delay of the watchdog since it was last read, in microseconds.
    watchdog_lag: AtomicU64,
}

/// The rare counts at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RareTotals {
    pub(crate) force_releases: [u64; Forced::COUNT],
    pub(crate) unlocked: [u64; Permit::COUNT],
}

impl Rare {
    pub(super) fn set_sends_commands(&self) {
        self.sends_commands.store(true, Relaxed);
    }

    pub(super) fn sends_commands(&self) -> bool {
        self.sends_commands.load(Relaxed)
    }

    pub(super) fn command(&self, command: Command, outcome: CommandOutcome, took: Duration) {
        let histogram = &self.commands[command as usize][outcome as usize];
        histogram.get_or_init(Box::default).record(took);
    }

    pub(super) fn durations(
        &self,
        command: Command,
        outcome: CommandOutcome,
    ) -> Option<Distribution> {
        let histogram = self.commands[command as usize][outcome as usize].get()?;
        let mut durations = Distribution::default();
        histogram.add_to(&mut durations);
        Some(durations)
    }

    pub(super) fn watchdog_late(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.watchdog_lag.fetch_max(micros, Relaxed);
    }

    pub(super) fn take_watchdog_lag(&self) -> Duration {
        Duration::from_micros(self.watchdog_lag.swap(0, Relaxed))
    }
}
