//! Faults of a Redis server under load, as Prometheus and Grafana see them.
//!
//! A child process per fault has the load and the exporter. At its end, the counts of the metrics must agree with what
//! the load itself has recorded. The alerts of `ops/` are then evaluated over the recorded scrapes, as well as each
//! expression of the dashboard.
//!
//! The thresholds of alerts are minutes, and a run lasts seconds. So a scrape every 250 ms counts as one every 15 s:
//! the recorded series last 60 times as long as the run. Rates are a sixtieth of the real ones, which changes no
//! ratio. Durations in the values are the real ones.
//!
//! `make ops` runs this program with the paths of `promtool` and `prometheus`. It has its own harness, because each
//! run needs a process: metrics belong to the process.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod child;
mod fault;
mod history;
mod load;
mod prometheus;
mod recording;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use fault::FAULTS;
use recording::Recording;

/// The environment variable with the name of the fault of a child.
const FAULT: &str = "CHAOS_FAULT";

/// The number of children that run at a time.
const AT_ONCE: usize = 2;

fn main() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos");
    std::fs::create_dir_all(&folder).unwrap();
    if let Ok(name) = std::env::var(FAULT) {
        let fault = FAULTS.iter().find(|fault| fault.name == name).unwrap();
        return child::run(fault).write(&folder.join(fault.name));
    }
    let next = Mutex::new(FAULTS.iter());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(fault) = next.lock().unwrap().next() else {
                        return;
                    };
                    let mut child = Command::new(std::env::current_exe().unwrap());
                    let status = child.env(FAULT, fault.name).status().unwrap();
                    assert!(status.success(), "{}: {status}", fault.name);
                }
            });
        }
    });
    let recordings: Vec<_> = FAULTS
        .iter()
        .map(|fault| (fault, Recording::read(&folder.join(fault.name))))
        .collect();
    prometheus::expect_alerts(&folder, &recordings);
    prometheus::expect_data_for_each_panel(&folder, &recordings);
}
