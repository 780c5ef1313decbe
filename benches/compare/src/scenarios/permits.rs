//! Ten permits of one key that 64 clients want, in four processes and in one.

use std::time::Duration;

use crate::bench::{Bench, turns};
use crate::contenders::{Contender, PERMITS};
use crate::contention::Contention;
use crate::job::Keys;
use crate::table::Series;
use crate::target::{self, Target};
use crate::team::Team;

const PROCESSES: usize = 4;
/// All of them, divided among the processes.
const CLIENTS: usize = 64;
const WINDOW: Duration = Duration::from_millis(1_500);
/// The rate divided by that of Redisson.
const TIMES: f64 = 5.0;
/// In percent.
const LEAST_SHARE: f64 = 15.0;

struct Figures {
    contention: Contention,
    /// The share of the process with the fewest grants, in percent.
    share: Series,
}

impl Figures {
    fn new() -> Self {
        Self {
            contention: Contention::over(WINDOW),
            share: Series::default(),
        }
    }

    fn rate(&self) -> &Series {
        &self.contention.grants
    }
}

pub(super) fn run(bench: &mut Bench) {
    let all = &Contender::SEMAPHORES;
    let counted = [all, &[Contender::OursPermitsCounted][..]].concat();
    measure(bench, PROCESSES, &counted);
    measure(bench, 1, &[Contender::OursPermits, Contender::Semaphore]);
}

fn measure(bench: &mut Bench, processes: usize, contenders: &[Contender]) {
    let (key, clients) = (Keys::Shared(1), CLIENTS / processes);
    let mut teams = bench.teams(contenders, processes, key, clients);
    let mut all: Vec<_> = contenders.iter().map(|_| Figures::new()).collect();
    for round in 0..bench.rounds {
        for at in turns(round, teams.len()) {
            if let Some(report) = teams[at].run(&bench.job(key, clients, WINDOW)) {
                all[at].contention.add(&report);
                all[at].share.add(report.smallest_share() * 100.0);
            }
        }
    }
    let scenario = match processes {
        1 => format!("{PERMITS} permits, {CLIENTS} waiters in one process: grants"),
        _ => format!("{PERMITS} permits, {processes} processes of {clients} waiters: grants"),
    };
    let java = |(team, _): &(&Team, &Figures)| team.contender.is_java();
    let java = teams.iter().zip(&all).filter(java);
    let java = java.filter(|(_, figures)| !figures.rate().is_empty());
    let fastest = java
        .map(|(_, figures)| figures.rate().median())
        .reduce(f64::max);
    for (team, figures) in teams.iter().zip(&all) {
        let note = || {
            let targets = match team.contender {
                Contender::OursPermits if processes > 1 => targets(figures, fastest),
                _ => Vec::new(),
            };
            let share = figures.share.text(0, "%");
            let share = format!("smallest share of a process {share}; ");
            let longest = figures.contention.longest_wait();
            let share = if processes > 1 { share } else { String::new() };
            target::note(&targets, share + &longest)
        };
        let (rate, ours) = (figures.rate(), all[0].rate());
        bench.table.rate(&scenario, team, rate, ours, note);
    }
}

/// `fastest` is the higher rate of the semaphores of Redisson, if they were measured.
fn targets(ours: &Figures, fastest: Option<f64>) -> Vec<Target> {
    let share = ours.share.median();
    let mut targets = vec![Target::at_least(
        "smallest share in %",
        share,
        LEAST_SHARE,
        0,
    )];
    if let Some(fastest) = fastest {
        let times = ours.rate().median() / fastest;
        targets.push(Target::at_least(
            "grants/s over Redisson's",
            times,
            TIMES,
            0,
        ));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_compared_with_faster_semaphore() {
        let mut ours = Figures::new();
        ours.contention.grants.add(5_000.0);
        ours.share.add(15.0);
        let missed = |fastest| target::note(&targets(&ours, fastest), String::new());
        assert_eq!([missed(None), missed(Some(1_000.0))], ["", ""]);
        assert_eq!(
            missed(Some(1_001.0)),
            "**missed: grants/s over Redisson's ≥ 5**"
        );
    }
}
