//! A new key for each shared pair, beside the exclusive pairs of the same contender.

use std::time::Duration;

use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::job::{Keys, Mode};
use crate::table::Series;
use crate::target::{self, Target};

const SCENARIO: &str = "shared, a new key for each pair, 64 in flight: pairs";
const IN_FLIGHT: usize = 64;
const WINDOW: Duration = Duration::from_millis(500);
const LEAST: f64 = 20_000.0;
/// The rate divided by that of Redisson.
const TIMES: f64 = 5.0;

#[derive(Default)]
struct Rates {
    shared: Series,
    exclusive: Series,
}

pub(super) fn run(bench: &mut Bench) {
    let mut teams = bench.teams(&Contender::READ_WRITE, 1, Keys::New, IN_FLIGHT);
    let mut all = Contender::READ_WRITE.map(|_| Rates::default());
    for round in 0..bench.rounds {
        for mode in [Mode::Shared, Mode::Exclusive] {
            for at in turns(round, teams.len()) {
                let mut job = bench.job(Keys::New, IN_FLIGHT, WINDOW);
                job.mode = mode;
                if let Some(report) = teams[at].run(&job) {
                    let rates = match mode {
                        Mode::Shared => &mut all[at].shared,
                        Mode::Exclusive => &mut all[at].exclusive,
                    };
                    rates.add(report.pairs_per_second());
                }
            }
        }
    }
    let [ours, .., redisson] = &all;
    for (team, rates) in teams.iter().zip(&all) {
        let note = || {
            let targets = match team.contender {
                Contender::Ours => targets(&ours.shared, &redisson.shared),
                _ => Vec::new(),
            };
            let exclusive = &rates.exclusive;
            let exclusive = match exclusive.is_empty() {
                true => String::new(),
                false => format!("exclusive {}", exclusive.text(0, "/s")),
            };
            target::note(&targets, exclusive)
        };
        let table = &mut bench.table;
        table.rate(SCENARIO, team, &rates.shared, &ours.shared, note);
    }
}

fn targets(ours: &Series, redisson: &Series) -> Vec<Target> {
    let rate = ours.median();
    let mut targets = vec![Target::at_least("pairs/s", rate, LEAST, 0)];
    if !redisson.is_empty() {
        let times = rate / redisson.median();
        let name = "pairs/s over those of `RReadWriteLock`";
        targets.push(Target::at_least(name, times, TIMES, 0));
    }
    targets
}
