//! Faults of a Redis server under load, as Prometheus and Grafana see them.
//!
//! A child process per fault has the load and the exporter. At its end, the counts of the metrics must agree with what
//! the load itself has recorded. A Prometheus server scrapes the children while they run, and each expression of the
//! dashboard in `ops/` is evaluated by it. The alerts are evaluated over what the children have recorded.
//!
//! The thresholds of alerts are minutes, and a run lasts seconds. So a recorded scrape every 250 ms counts as one every
//! 15 s: the recorded series last 60 times as long as the run. Rates are a sixtieth of the real ones, which changes no
//! ratio. Durations in the values are the real ones.
//!
//! `make ops` runs this program with the paths of `promtool` and `prometheus`. It has its own harness, because each
//! run needs a process: metrics belong to the process.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod alerts;
mod child;
mod fault;
mod history;
mod load;
mod prometheus;
mod recording;
mod stall;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use fault::FAULTS;
use prometheus::Prometheus;
use recording::Recording;

/// The environment variables of a child: the name of its fault, and the port of its exporter.
const FAULT: &str = "CHAOS_FAULT";
const PORT: &str = "CHAOS_PORT";

/// The number of children that run at a time.
const AT_ONCE: usize = 2;

fn main() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos");
    std::fs::create_dir_all(&folder).unwrap();
    if let Ok(name) = std::env::var(FAULT) {
        let fault = FAULTS.iter().find(|fault| fault.name == name).unwrap();
        let port = std::env::var(PORT).unwrap().parse().unwrap();
        let scrape = folder.join(format!("{name}.prom"));
        return child::run(fault, port, &scrape).write(&folder.join(fault.name));
    }
    let prometheus = Prometheus::start(&folder);
    let next = Mutex::new(FAULTS.iter());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(fault) = next.lock().unwrap().next() else {
                        return;
                    };
                    let mut child = Command::new(std::env::current_exe().unwrap());
                    let port = prometheus.port_of(fault).to_string();
                    child.env(FAULT, fault.name).env(PORT, port);
                    let status = child.status().unwrap();
                    assert!(status.success(), "{}: {status}", fault.name);
                }
            });
        }
    });
    let recordings: Vec<_> = FAULTS
        .iter()
        .map(|fault| (fault, Recording::read(&folder.join(fault.name))))
        .collect();
    alerts::expect(&folder, &recordings);
    prometheus.expect_data_for_each_panel();
    prometheus::lint(&folder.join("nothing.prom"));
}
