//! More locks at a time, each on a new key.

use std::time::Duration;

use super::{ROUND_TRIPS, Spent, draw, named, rounds, slope};
use crate::bench::Bench;
use crate::contenders::Contender;
use crate::job::Keys;
use crate::table::{Series, thousands};
use crate::team::Team;

const LEVELS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Figures {
    pairs: [Series; LEVELS.len()],
    /// The time of an acquire in milliseconds.
    p50: [Series; LEVELS.len()],
    commands: [Series; LEVELS.len()],
    bytes: [Series; LEVELS.len()],
    /// The CPU of Redis for each pair in microseconds.
    cpu: [Series; LEVELS.len()],
}

pub(super) fn run(bench: &mut Bench, urls: &[String; 2]) {
    let mut teams = (urls.each_ref()).map(|url| Team::start(Contender::Ours, 1, 1, url));
    let mut all = [Figures::default(), Figures::default()];
    for team in &mut teams {
        drop(team.run(&bench.job(Keys::New, 100, WINDOW)));
    }
    for _ in 0..rounds(bench) {
        for (level, in_flight) in LEVELS.into_iter().enumerate() {
            for (team, figures) in teams.iter_mut().zip(&mut all) {
                figures.add(bench, team, level, in_flight);
            }
        }
    }
    let failure = teams.iter().find_map(Team::failure);
    if let Some(failure) = failure {
        return bench
            .table
            .left_out("growth: locks in flight", "tower-lock", &failure);
    }
    for (round_trip, figures) in ROUND_TRIPS.into_iter().zip(&all) {
        for (level, in_flight) in LEVELS.into_iter().enumerate() {
            let scenario = format!(
                "growth, {} in flight, {}: pairs",
                thousands(in_flight as f64, 0),
                named(round_trip)
            );
            let rate = figures.pairs[level].text(0, "/s");
            let slope = slope(&LEVELS, &figures.pairs, level);
            (bench.table).row(&scenario, "tower-lock", rate, slope, figures.note(level));
        }
    }
    let lines = ROUND_TRIPS.into_iter().zip(&all);
    let lines = lines.map(|(round_trip, it)| (named(round_trip), &it.pairs[..]));
    let axes = ["locks in flight", "acquire and release, per second"];
    let title = "Free locks, more at a time";
    draw(
        "growth-in-flight.svg",
        title,
        axes,
        &LEVELS,
        &lines.collect::<Vec<_>>(),
    );
}

impl Figures {
    fn add(&mut self, bench: &mut Bench, team: &mut Team, level: usize, in_flight: usize) {
        let job = bench.job(Keys::New, in_flight, WINDOW);
        let sent = |bench: &Bench| Contender::Ours.sent(|command| bench.server.calls(command));
        let commands = sent(bench);
        let before = Spent::now(bench);
        let Some(report) = team.run(&job) else {
            return;
        };
        let [cpu, bytes] = Spent::since(before, bench, report.pairs());
        let commands = (sent(bench) - commands) as f64 / report.pairs() as f64;
        self.pairs[level].add(report.pairs_per_second());
        self.p50[level].add(report.waits().at(0.5) * 1e3);
        self.commands[level].add(commands);
        self.bytes[level].add(bytes);
        self.cpu[level].add(cpu);
    }

    fn note(&self, level: usize) -> String {
        let cpu = &self.cpu[level];
        format!(
            "p50 of an acquire {}; {} commands and {} for each pair; {} of Redis, so one node carries {}/s by calculation",
            self.p50[level].text(2, "ms"),
            self.commands[level].text(3, ""),
            self.bytes[level].text(0, "bytes"),
            cpu.text(1, "µs"),
            thousands(1e6 / cpu.median(), 0),
        )
    }
}
