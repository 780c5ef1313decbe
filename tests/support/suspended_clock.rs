//! A process whose `CLOCK_MONOTONIC` excludes the time for which a test stopped it, as after a suspend of
//! the machine. `CLOCK_BOOTTIME` is the real one.

use std::process::Command;
use std::time::{Duration, SystemTime};

use super::preloaded::Preloaded;

/// The clock of one process. Linux only.
pub(crate) struct SuspendedClock {
    library: Preloaded,
    stopped: Option<SystemTime>,
    total: Duration,
}

impl SuspendedClock {
    pub(crate) fn new() -> Self {
        Self {
            library: Preloaded::build("suspended", 0),
            stopped: None,
            total: Duration::ZERO,
        }
    }

    /// Makes the process that `command` starts use this clock.
    pub(crate) fn preload(&self, command: &mut Command) {
        self.library.preload(command);
    }

    /// Records the stop. The test calls it after it has stopped the process.
    pub(crate) fn stop(&mut self) {
        self.stopped = Some(SystemTime::now());
    }

    /// Records the end of the stop. The test calls it before the process continues.
    pub(crate) fn resume(&mut self) {
        let stopped = self.stopped.take().expect("it was stopped");
        self.total += stopped.elapsed().expect("time goes forward");
        let nanos = i64::try_from(self.total.as_nanos()).expect("a short suspend");
        self.library.set(nanos);
    }
}
