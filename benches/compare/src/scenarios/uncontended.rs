//! A new key per pair: the cost of an uncontended lock.

use std::time::Duration;

use crate::bench::{Bench, result, turns};
use crate::contenders::Contender;
use crate::job::Keys;
use crate::plot::{self, Line};
use crate::table::{Series, ratio};
use crate::team::{Report, Team};
use crate::waits::Waits;

const IN_FLIGHT: [usize; 4] = [1, 16, 64, 256];
const WINDOW: Duration = Duration::from_millis(300);
/// The number of windows per contender in a round, in turns with the others. They are short, because the
/// speed of the machine changes over seconds.
const WINDOWS: usize = 3;
/// The number of windows with one lock in flight. The time in which the system wakes two processes in turn
/// can differ by a factor of four between windows.
const ALONE: usize = 6;

/// The figures of one contender.
#[derive(Default)]
struct Figures {
    /// The rates, one per element of `IN_FLIGHT`.
    pairs: [Series; IN_FLIGHT.len()],
    /// The time from the end of the window to the confirmation of the last release, in milliseconds.
    late: [Series; IN_FLIGHT.len()],
    /// The time of an acquire with no other command in flight, in microseconds.
    p50: Series,
    p99: Series,
    alone: Waits,
    /// The time of Redis for each pair in microseconds: its commands, without reading and writing.
    server: Series,
}

pub(crate) fn run(bench: &mut Bench) {
    let mut teams = bench.teams(&Contender::ALL, 1, Keys::New, 64);
    let mut all: Vec<_> = teams.iter().map(|_| Figures::default()).collect();
    for round in 0..bench.rounds {
        for (level, in_flight) in IN_FLIGHT.into_iter().enumerate() {
            let windows = if in_flight == 1 { ALONE } else { WINDOWS };
            let count = teams.len();
            for at in (0..windows).flat_map(|window| turns(round + window, count)) {
                let job = bench.job(Keys::New, in_flight, WINDOW);
                let before = bench.micros(teams[at].contender);
                if let Some(report) = teams[at].run(&job) {
                    all[at].add(level, &report);
                    if in_flight == 1 {
                        let micros = bench.micros(teams[at].contender) - before;
                        all[at].server.add(micros as f64 / report.pairs() as f64);
                    }
                }
            }
        }
    }
    tell_pairs(bench, &teams, &all);
    tell_latency(bench, &teams, &all);
    draw(&teams, &all);
}

impl Figures {
    fn add(&mut self, level: usize, report: &Report) {
        self.pairs[level].add(report.pairs_per_second());
        self.late[level].add((report.seconds() - WINDOW.as_secs_f64()) * 1e3);
        if IN_FLIGHT[level] == 1 {
            let waits = report.waits();
            self.p50.add(waits.at(0.5) * 1e6);
            self.p99.add(waits.at(0.99) * 1e6);
            self.alone.add(&waits);
        }
    }
}

fn tell_pairs(bench: &mut Bench, teams: &[Team], all: &[Figures]) {
    for (level, in_flight) in IN_FLIGHT.into_iter().enumerate() {
        let scenario = format!("uncontended, {in_flight} in flight: pairs");
        for (team, figures) in teams.iter().zip(all) {
            let (pairs, ours) = (&figures.pairs[level], &all[0].pairs[level]);
            let note = || format!("last release {} late", figures.late[level].text(0, "ms"));
            bench.table.rate(&scenario, team, pairs, ours, note);
        }
    }
}

fn tell_latency(bench: &mut Bench, teams: &[Team], all: &[Figures]) {
    let latencies: Vec<_> = all.iter().map(|it| (&it.p50, &it.p99)).collect();
    let scenario = "uncontended, 1 in flight: p50 of an acquire";
    bench.table.latencies(scenario, teams, &latencies);
    let rslock = teams
        .iter()
        .position(|it| it.contender == Contender::Rslock);
    for (team, figures) in teams.iter().zip(all) {
        let server = &figures.server;
        let (name, note) = (team.contender.name(), team.noted(String::new()));
        let scenario = "uncontended, 1 in flight: time of Redis for each pair";
        let figure = (!server.is_empty()).then(|| server.text(2, "µs"));
        let ratio = rslock.map(|at| ratio(server, &all[at].server, "rslock"));
        let (figure, ratio) = (figure.unwrap_or_default(), ratio.unwrap_or_default());
        bench.table.row(scenario, name, figure, ratio, note);
    }
}

fn draw(teams: &[Team], all: &[Figures]) {
    let complete = |figures: &Figures| figures.pairs.iter().all(|pairs| !pairs.is_empty());
    let drawn = || {
        teams
            .iter()
            .zip(all)
            .filter(|(_, figures)| complete(figures))
    };
    let alone = drawn().map(|(team, figures)| Line::new(team.contender, &figures.alone));
    plot::waits(
        &result("latency.svg"),
        "Time to acquire a free lock, 1 in flight",
        &alone.collect::<Vec<_>>(),
    );
    let pairs = drawn().map(|(team, figures)| Line::new(team.contender, &figures.pairs[..]));
    plot::throughput(
        &result("throughput.svg"),
        "Acquire and release of free locks",
        &IN_FLIGHT,
        &pairs.collect::<Vec<_>>(),
    );
}
