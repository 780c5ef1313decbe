//! Keys that come back to one process, and a process that waits for one of them.

use std::time::Duration;

use super::processes::counted;
use crate::bench::{Bench, turns};
use crate::contenders::{Contender, KEPT};
use crate::job::Keys;
use crate::table::{Series, ratio};
use crate::target::{self, Target};
use crate::team::{Report, Team};
use crate::waits::Waits;

const WINDOW: Duration = Duration::from_millis(500);
/// For the waits of the other process.
const LONG_WINDOW: Duration = Duration::from_secs(4);
/// Between two acquires of the other process.
const PAUSE: Duration = Duration::from_millis(25);
/// The wait for the command that ends the turn, and for a core.
const TRANSFER: Duration = Duration::from_millis(3);

/// So many clients, and how long each sleeps after a release.
struct Level {
    in_flight: usize,
    pause: Duration,
    scenario: &'static str,
}

const LEVELS: [Level; 4] = [
    Level {
        in_flight: 1,
        pause: Duration::ZERO,
        scenario: "a key that comes back, 1 in flight: pairs",
    },
    Level {
        in_flight: 64,
        pause: Duration::ZERO,
        scenario: "64 keys that come back, 64 in flight: pairs",
    },
    Level {
        in_flight: 1,
        pause: Duration::from_millis(1),
        scenario: "a key that comes back after 1 ms, 1 in flight: pairs",
    },
    Level {
        in_flight: 64,
        pause: Duration::from_millis(1),
        scenario: "64 keys that come back after 1 ms, 64 in flight: pairs",
    },
];

/// The figures of one contender at one level.
#[derive(Default)]
struct Figures {
    pairs: Series,
    /// The commands that the client sent per grant.
    commands: Series,
    /// The time of an acquire, in microseconds.
    p50: Series,
}

pub(super) fn run(bench: &mut Bench) {
    for level in &LEVELS {
        repeat(bench, level);
    }
    for hold in [0, 5].map(Duration::from_millis) {
        beside(bench, hold);
    }
}

fn repeat(bench: &mut Bench, level: &Level) {
    let contenders = Contender::REPEATED;
    let mut teams = bench.teams(&contenders, 1, Keys::Own, level.in_flight);
    let mut all = contenders.map(|_| Figures::default());
    for round in 0..bench.rounds {
        for at in turns(round, teams.len()) {
            let mut job = bench.job(Keys::Own, level.in_flight, WINDOW);
            job.pause = level.pause;
            if let (Some(report), commands) = counted(bench, &mut teams[at], 1, &job) {
                all[at].add(&report, commands);
            }
        }
    }
    let pairs = |contender| {
        let at = contenders.iter().position(|it| *it == contender)?;
        let pairs = &all[at].pairs;
        (!pairs.is_empty()).then(|| pairs.median())
    };
    let [memory, rslock] = [Contender::OursInMemory, Contender::Rslock].map(pairs);
    for (team, figures) in teams.iter().zip(&all) {
        let targets = || match team.contender {
            Contender::OursKept if level.pause.is_zero() => figures.targets(level, memory, rslock),
            _ => Vec::new(),
        };
        let note = || target::note(&targets(), figures.note());
        (bench.table).rate(level.scenario, team, &figures.pairs, &all[0].pairs, note);
    }
}

impl Figures {
    fn add(&mut self, report: &Report, commands: u64) {
        self.pairs.add(report.pairs_per_second());
        self.commands.add(commands as f64 / report.pairs() as f64);
        self.p50.add(report.waits().at(0.5) * 1e6);
    }

    fn targets(&self, level: &Level, memory: Option<f64>, rslock: Option<f64>) -> Vec<Target> {
        let over = |other: Option<f64>| self.pairs.median() / other.unwrap_or(f64::NAN);
        match level.in_flight {
            1 => vec![
                Target::at_least("pairs / rslock", over(rslock), 10.0, 0),
                Target::at_least("pairs / memory", over(memory), 0.5, 1),
            ],
            _ => vec![
                Target::at_least("pairs / rslock", over(rslock), 4.0, 0),
                Target::at_most("commands", self.commands.median(), 0.02, 2),
            ],
        }
    }

    fn note(&self) -> String {
        let (commands, p50) = (self.commands.text(4, ""), self.p50.text(1, "µs"));
        format!("{commands} commands for each grant; p50 of an acquire {p50}")
    }
}

/// The waits of another process for a key that one process repeats without a pause.
#[derive(Default)]
struct Beside {
    p50: Series,
    p99: Series,
    longest: Series,
    /// The grants of the process with the fewest, if both repeat the key, over an equal share.
    share: Series,
}

fn beside(bench: &mut Bench, hold: Duration) {
    let contenders = [Contender::Ours, Contender::OursKept, Contender::Rslock];
    let mut teams = bench.teams(&contenders, 2, Keys::Own, 1);
    let mut all = contenders.map(|_| Beside::default());
    for round in 0..bench.rounds {
        for at in turns(round, teams.len()) {
            all[at].measure(bench, &mut teams[at], hold);
        }
    }
    let scenario = format!(
        "a key that one process repeats, holds of {} ms: wait of another one, p50",
        hold.as_millis()
    );
    for (team, figures) in teams.iter().zip(&all) {
        let cells = match figures.p50.is_empty() || figures.share.is_empty() {
            true => [String::new(), String::new(), String::new()],
            false => [
                figures.p50.text(1, "ms"),
                ratio(&figures.p50, &all[0].p50, "tower-lock"),
                figures.note(team.contender, hold),
            ],
        };
        let [figure, ratio, note] = cells;
        let note = team.noted(note);
        (bench.table).row(&scenario, team.contender.name(), figure, ratio, note);
    }
}

impl Beside {
    fn measure(&mut self, bench: &mut Bench, team: &mut Team, hold: Duration) {
        let mut repeats = bench.job(Keys::Own, 1, LONG_WINDOW);
        repeats.hold = hold;
        let mut waits = repeats.clone();
        waits.pause = PAUSE;
        if let Some([_, other]) = team.run_each([(1, &repeats), (1, &waits)]) {
            self.add(&other.waits());
        }
        let mut both = bench.job(Keys::Own, 1, LONG_WINDOW);
        both.hold = hold;
        if let Some(report) = team.run(&both) {
            self.share.add(2.0 * report.smallest_share());
        }
    }

    fn add(&mut self, waits: &Waits) {
        self.p50.add(waits.at(0.5) * 1e3);
        self.p99.add(waits.at(0.99) * 1e3);
        self.longest.add(waits.longest() * 1e3);
    }

    fn note(&self, contender: Contender, hold: Duration) -> String {
        let bound = (KEPT + hold + TRANSFER).as_secs_f64() * 1e3;
        let targets = match contender {
            Contender::OursKept => vec![
                Target::at_most("p99", self.p99.median(), bound, 0),
                Target::at_least("share", self.share.median(), 0.8, 1),
            ],
            _ => Vec::new(),
        };
        let [p99, longest] = [&self.p99, &self.longest].map(|it| it.text(1, "ms"));
        let share = self.share.text(2, "");
        let note = format!(
            "p99 {p99}, longest {longest}; if both repeat it, the smaller share is {share} of an equal one"
        );
        target::note(&targets, note)
    }
}
