//! A thousand keys with unequal popularity, in four processes.

use std::time::Duration;

use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::contention::Contention;
use crate::job::Keys;

const KEYS: Keys = Keys::Shared(1_000);
const PROCESSES: usize = 4;
/// The number of workers per process.
const WORKERS: usize = 16;
const WINDOW: Duration = Duration::from_millis(1_500);

pub(crate) fn run(bench: &mut Bench) {
    let mut teams = bench.teams(&Contender::WAITING, PROCESSES, KEYS, WORKERS);
    let mut all = Contender::WAITING.map(|_| Contention::over(WINDOW));
    for round in 0..bench.rounds {
        for at in turns(round, teams.len()) {
            if let Some(report) = teams[at].run(&bench.job(KEYS, WORKERS, WINDOW)) {
                all[at].add(&report);
            }
        }
    }
    for (team, contention) in teams.iter().zip(&all) {
        bench.table.rate(
            "1,000 keys by Zipf's law, 4 processes of 16 workers: grants",
            team,
            &contention.grants,
            &all[0].grants,
            || contention.longest_wait(),
        );
    }
}
