//! One key that all clients of four processes want.

use std::time::Duration;

use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::contention::Contention;
use crate::job::{Job, Keys};
use crate::standstill::Standstills;
use crate::table::Series;
use crate::target::{self, Target};
use crate::team::{Report, Team};

const PROCESSES: usize = 4;
/// The number of waiters per process.
const WAITERS: usize = 16;
const WINDOW: Duration = Duration::from_secs(2);
/// The longest wait of tower-lock, divided by the median.
const MOST: f64 = 10.0;
const SCENARIO: &str = "one hot key, 4 processes of 16 waiters: grants";
const CONTENDERS: [Contender; 5] = [
    Contender::Ours,
    Contender::Rslock,
    Contender::Redisson,
    Contender::Rueidislock,
    Contender::Redsync,
];

struct Figures {
    contention: Contention,
    /// The share of the process with the fewest grants, in percent.
    smallest_share: Series,
    /// The commands that clients sent per grant.
    commands: Series,
}

pub(crate) fn run(bench: &mut Bench) {
    let key = Keys::Shared(1);
    let mut teams = bench.teams(&CONTENDERS, PROCESSES, key, WAITERS);
    let mut all = CONTENDERS.map(|_| Figures::new());
    let mut standstills = Standstills::of(PROCESSES);
    for round in 0..bench.rounds {
        standstills.watch(WINDOW);
        for at in turns(round, teams.len()) {
            let job = bench.job(key, WAITERS, WINDOW);
            if let (Some(report), commands) = counted(bench, &mut teams[at], PROCESSES, &job) {
                all[at].add(&report, commands);
            }
        }
    }
    for (team, figures) in teams.iter().zip(&all) {
        bench.table.rate(
            SCENARIO,
            team,
            &figures.contention.grants,
            &all[0].contention.grants,
            || figures.note(team.contender),
        );
    }
    standstills.tell(&mut bench.table, SCENARIO);
}

/// Runs a job in so many processes, and returns its report with the number of commands that they sent.
pub(super) fn counted(
    bench: &Bench,
    team: &mut Team,
    processes: usize,
    job: &Job,
) -> (Option<Report>, u64) {
    let contender = team.contender;
    let sent = || contender.sent(|command| bench.server.calls(command));
    let before = sent();
    let report = team.run_in(processes, job);
    (report, sent() - before)
}

impl Figures {
    fn new() -> Self {
        Self {
            contention: Contention::over(WINDOW),
            smallest_share: Series::default(),
            commands: Series::default(),
        }
    }

    fn add(&mut self, report: &Report, commands: u64) {
        self.contention.add(report);
        self.smallest_share.add(report.smallest_share() * 100.0);
        // The commands count until the last waiter is granted, so the grants do as well.
        self.commands.add(commands as f64 / report.pairs() as f64);
    }

    fn note(&self, contender: Contender) -> String {
        let longest = self.contention.spread.median();
        let targets = match contender {
            Contender::Ours => vec![Target::at_most("longest wait / median", longest, MOST, 0)],
            _ => Vec::new(),
        };
        let (share, commands) = (self.smallest_share.text(0, "%"), self.commands.text(3, ""));
        let longest = self.contention.longest_wait();
        let note = format!(
            "smallest share of a process {share}; {commands} commands for each grant; {longest}"
        );
        target::note(&targets, note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_wait_is_compared_with_median() {
        let is_missed = |spread, contender| {
            let mut figures = Figures::new();
            let contention = &mut figures.contention;
            contention.spread.add(spread);
            contention.longest.add(1.0);
            figures.smallest_share.add(25.0);
            figures.commands.add(1.0);
            let note = figures.note(contender);
            note.starts_with("**missed: longest wait / median ≤ 10**; smallest share")
        };
        assert!(!is_missed(10.0, Contender::Ours));
        assert!(is_missed(10.1, Contender::Ours));
        assert!(!is_missed(10.1, Contender::Rslock));
    }
}
