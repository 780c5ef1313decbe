//! The cores on which processes run, set with `taskset` and read from `/proc`.

use std::fs::read_to_string;
use std::process::{Command, Stdio};

/// Processes that share the first core while this value lives.
pub(crate) struct OnOneCore {
    processes: Vec<u32>,
    all: String,
}

impl OnOneCore {
    pub(crate) fn new(processes: Vec<u32>) -> Result<Self, String> {
        let status = read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let all = allowed.ok_or("no list of cores")?.trim().to_owned();
        let first = all.split(['-', ',']).next().unwrap_or_default().to_owned();
        let pinned = Self { processes, all };
        pinned.put_on(&first)?;
        Ok(pinned)
    }

    fn put_on(&self, cores: &str) -> Result<(), String> {
        // The other processes return to their cores even if one fails.
        let outcomes = self.processes.iter().map(|process| put_on(*process, cores));
        outcomes.fold(Ok(()), Result::and)
    }
}

impl Drop for OnOneCore {
    fn drop(&mut self) {
        // A process that has ended needs no core.
        drop(self.put_on(&self.all));
    }
}

fn put_on(process: u32, cores: &str) -> Result<(), String> {
    let mut taskset = Command::new("taskset");
    taskset.args(["--all-tasks", "--cpu-list", "--pid", cores]);
    match taskset
        .arg(process.to_string())
        .stdout(Stdio::null())
        .status()
    {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("taskset: {status}")),
        Err(error) => Err(format!("taskset cannot be run: {error}")),
    }
}
