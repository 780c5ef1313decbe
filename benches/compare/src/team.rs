//! The processes that work for one contender in a scenario.

use crate::child::Speaker;
use crate::contenders::Contender;
use crate::job::{Done, Job};
use crate::waits::Waits;

/// The number of failures after which a contender receives no more jobs.
const MOST_FAILURES: usize = 3;

pub(crate) struct Team {
    pub(crate) contender: Contender,
    workers: Vec<Speaker>,
    failures: Vec<String>,
}

impl Team {
    /// Starts so many processes with so many managers each. Without them, the team has the reason of the
    /// failure.
    pub(crate) fn start(contender: Contender, size: usize, managers: usize, url: &str) -> Self {
        let start = |_| {
            let mut worker = Speaker::start(contender.program(managers, url)?)?;
            worker.expect("ready")?;
            Ok(worker)
        };
        let (workers, failures) = match (0..size).map(start).collect() {
            Ok(workers) => (workers, Vec::new()),
            Err(reason) => (Vec::new(), vec![reason]),
        };
        Self {
            contender,
            workers,
            failures,
        }
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = u32> {
        self.workers.iter().map(Speaker::process)
    }

    /// Runs the job in all processes concurrently. Returns `None` if one of them failed.
    pub(crate) fn run(&mut self, job: &Job) -> Option<Report> {
        self.run_in(self.workers.len(), job)
    }

    /// Runs the job in so many of the processes; the others idle.
    pub(crate) fn run_in(&mut self, processes: usize, job: &Job) -> Option<Report> {
        let [report] = self.run_each([(processes, job)])?;
        Some(report)
    }

    /// Runs each job in so many processes of its own, all concurrently. Returns `None` if one of them failed.
    pub(crate) fn run_each<const N: usize>(
        &mut self,
        jobs: [(usize, &Job); N],
    ) -> Option<[Report; N]> {
        if self.workers.is_empty() || self.failures.len() == MOST_FAILURES {
            return None;
        }
        let done = all_at_once(&mut self.workers, jobs);
        done.map_err(|reason| self.failures.push(reason)).ok()
    }

    /// Returns the text for the table, which is empty without failures.
    pub(crate) fn failure(&self) -> Option<String> {
        let last = self.failures.last()?;
        Some(match self.workers.len() {
            0 => format!("left out: {last}"),
            _ => format!("failed {} ×: {last}", self.failures.len()),
        })
    }

    /// Returns a note with the failure behind it.
    pub(crate) fn noted(&self, note: String) -> String {
        let parts = [Some(note).filter(|it| !it.is_empty()), self.failure()];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

fn all_at_once<const N: usize>(
    mut workers: &mut [Speaker],
    jobs: [(usize, &Job); N],
) -> Result<[Report; N], String> {
    let groups = jobs.map(|(processes, job)| {
        let (group, rest) = std::mem::take(&mut workers).split_at_mut(processes);
        workers = rest;
        for worker in &mut *group {
            // A process that accepts no job has ended, which shows when its reply is read.
            drop(worker.say(&job.to_string()));
        }
        group
    });
    // All replies are read before a failure counts, because an unread reply would be read as the next one.
    let mut failure = None;
    let reports = groups.map(|group| {
        let done = group.iter_mut().filter_map(|worker| {
            let done = answer(worker);
            done.map_err(|reason| failure = Some(reason)).ok()
        });
        Report(done.collect())
    });
    failure.map_or(Ok(reports), Err)
}

fn answer(worker: &mut Speaker) -> Result<Done, String> {
    let done = worker.expect("done")?;
    done.parse().map_err(|error| format!("{error}"))
}

/// The result of each process of a team.
pub(crate) struct Report(Vec<Done>);

impl Report {
    pub(crate) fn pairs_per_second(&self) -> f64 {
        self.pairs() as f64 / self.seconds()
    }

    /// Returns the time until the server has confirmed the last release.
    pub(crate) fn seconds(&self) -> f64 {
        self.0.iter().map(|done| done.seconds).fold(0.0, f64::max)
    }

    /// Returns the number of pairs, including those of clients that waited when the window ended.
    pub(crate) fn pairs(&self) -> u64 {
        self.0.iter().map(|done| done.pairs).sum()
    }

    /// Returns the number of grants within the window. After the window, fewer clients contend.
    pub(crate) fn grants(&self) -> u64 {
        self.0.iter().map(|done| done.in_window).sum()
    }

    /// Returns the share of the grants of the process with the fewest.
    pub(crate) fn smallest_share(&self) -> f64 {
        let least = self.0.iter().map(|done| done.in_window).min();
        least.unwrap_or(0) as f64 / self.grants().max(1) as f64
    }

    /// Returns the smallest share of a client, divided by an equal share among so many.
    pub(crate) fn smallest_part(&self, clients: usize) -> f64 {
        let least = self.0.iter().map(|done| done.least).min();
        (least.unwrap_or(0) * clients as u64) as f64 / self.grants().max(1) as f64
    }

    pub(crate) fn waits(&self) -> Waits {
        let mut all = Waits::default();
        for done in &self.0 {
            all.add(&done.waits);
        }
        all
    }
}
