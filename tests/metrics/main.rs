//! Each metric of the crate, and its traces, on memory.
//!
//! It is a program of its own: a test installs a recorder for the whole process.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod backend;
mod commands;
mod engine;
mod names;
mod ops;
mod recorders;
mod rendered;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "tracing")]
mod traces;

use std::time::Duration;

use support::recorder::{Recorder, Seen};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Runs `work` in a runtime whose time is paused, and returns all metrics, with the last ones of its managers.
fn reported(work: impl Future<Output = ()>) -> Seen {
    let recorder = Recorder::new();
    recorder.run(|| run(work));
    recorder.read()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(work)
}
