//! A process whose `CLOCK_MONOTONIC` excludes the time for which a test stopped it, as after a suspend of
//! the machine. `CLOCK_BOOTTIME` is the real one.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

/// The clock of one process. Linux only.
pub(crate) struct SuspendedClock {
    dir: TempDir,
    stopped: Option<SystemTime>,
    total: Duration,
}

impl SuspendedClock {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory for the library");
        let clock = Self {
            dir,
            stopped: None,
            total: Duration::ZERO,
        };
        clock.write();
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/suspended_clock.c"
        );
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
            .args([clock.library(), source.into()])
            .status();
        let status = status.unwrap_or_else(|error| {
            panic!("this test needs a C compiler: `cc` cannot be run ({error})")
        });
        assert!(status.success(), "`cc` rejects {source}");
        clock
    }

    /// Makes the process that `command` starts use this clock.
    pub(crate) fn preload(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", self.library())
            .env("SUSPENDED_NANOS", self.nanos());
    }

    /// Records the stop. The test calls it after it has stopped the process.
    pub(crate) fn stop(&mut self) {
        self.stopped = Some(SystemTime::now());
    }

    /// Records the end of the stop. The test calls it before the process continues.
    pub(crate) fn resume(&mut self) {
        let stopped = self.stopped.take().expect("it was stopped");
        self.total += stopped.elapsed().expect("time goes forward");
        self.write();
    }

    fn write(&self) {
        let nanos = i64::try_from(self.total.as_nanos()).expect("a short suspend");
        std::fs::write(self.nanos(), nanos.to_ne_bytes()).expect("a file");
    }

    fn nanos(&self) -> PathBuf {
        self.dir.path().join("nanos")
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("suspended_clock.so")
    }
}
