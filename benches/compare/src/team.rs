//! The processes that work for one contender in a scenario.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::contenders::Contender;
use crate::job::{Done, Job};
use crate::waits::Waits;

pub(crate) struct Team {
    pub(crate) contender: Contender,
    /// Or why there are none: the first failure is the last, and goes into the table.
    workers: Result<Vec<Worker>, String>,
}

impl Team {
    /// So many processes, ready to work.
    pub(crate) fn start(contender: Contender, size: usize, url: &str) -> Self {
        let start = |_| Worker::start(contender.program(url)?);
        Self {
            contender,
            workers: (0..size).map(start).collect(),
        }
    }

    /// All do the job at the same time. `None` if one of them cannot, now or before.
    pub(crate) fn run(&mut self, job: &Job) -> Option<Report> {
        let workers = self.workers.as_mut().ok()?;
        match all_at_once(workers, job) {
            Ok(done) => Some(Report(done)),
            Err(reason) => {
                eprintln!("{}: {reason}", self.contender.name());
                self.workers = Err(reason);
                None
            }
        }
    }

    /// Nothing unless it has failed.
    pub(crate) fn failure(&self) -> String {
        self.workers.as_ref().err().cloned().unwrap_or_default()
    }
}

fn all_at_once(workers: &mut [Worker], job: &Job) -> Result<Vec<Done>, String> {
    for worker in &mut *workers {
        worker.ask(job)?;
    }
    workers.iter_mut().map(Worker::answer).collect()
}

/// What each process of a team has done.
pub(crate) struct Report(Vec<Done>);

impl Report {
    /// Pairs, until the server had confirmed the last release.
    pub(crate) fn pairs_per_second(&self) -> f64 {
        let pairs: u64 = self.0.iter().map(|done| done.pairs).sum();
        let seconds = self.0.iter().map(|done| done.seconds);
        pairs as f64 / seconds.fold(0.0, f64::max)
    }

    pub(crate) fn grants(&self) -> u64 {
        self.0.iter().map(|done| done.in_window).sum()
    }

    /// Of the grants, that of the process that got the least.
    pub(crate) fn smallest_share(&self) -> f64 {
        let least = self.0.iter().map(|done| done.in_window).min();
        least.unwrap_or(0) as f64 / self.grants() as f64
    }

    /// Also of those who still waited when the window was over, and then got the lock.
    pub(crate) fn all_pairs(&self) -> u64 {
        self.0.iter().map(|done| done.pairs).sum()
    }

    pub(crate) fn waits(&self) -> Waits {
        let mut all = Waits::new();
        for done in &self.0 {
            all.add(&done.waits);
        }
        all
    }
}

struct Worker {
    process: Child,
    jobs: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command
            .spawn()
            .map_err(|error| format!("cannot be run: {error}"))?;
        let mut worker = Self {
            jobs: process.stdin.take().expect("it is piped"),
            answers: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
        };
        match worker.line()?.as_str() {
            "ready" => Ok(worker),
            line => Err(line.to_owned()),
        }
    }

    fn ask(&mut self, job: &Job) -> Result<(), String> {
        writeln!(self.jobs, "{job}").map_err(|error| format!("takes no job: {error}"))
    }

    fn answer(&mut self) -> Result<Done, String> {
        let line = self.line()?;
        match line.split_once(' ') {
            Some(("done", done)) => done.parse().map_err(|error| format!("{error}")),
            Some(("failed", reason)) => Err(reason.to_owned()),
            _ => Err(format!("answers `{line}`")),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err("the process has ended; it may have said why on its way".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(format!("no answer: {error}")),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended needs no kill.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
