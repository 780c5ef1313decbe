//! A new key for each pair: what a lock costs that nobody else wants.

use std::time::Duration;

use crate::bench::{Bench, result};
use crate::contenders::Contender;
use crate::job::Keys;
use crate::plot::{self, Line};
use crate::table::{Series, ratio};
use crate::team::Report;
use crate::waits::Waits;

const IN_FLIGHT: [usize; 4] = [1, 16, 64, 256];
const WINDOW: Duration = Duration::from_millis(700);

/// What one contender has reached.
struct Figures {
    contender: Contender,
    failure: String,
    /// For each of `IN_FLIGHT`.
    pairs: [Series; IN_FLIGHT.len()],
    /// Of an acquire when nothing else is in flight, in microseconds.
    p50: Series,
    p99: Series,
    alone: Waits,
}

pub(crate) fn run(bench: &mut Bench) {
    let mut teams = bench.teams(&Contender::ALL, 1, Keys::New, 64);
    let mut all: Vec<_> = teams
        .iter()
        .map(|team| Figures::new(team.contender))
        .collect();
    for _ in 0..bench.rounds {
        for (level, in_flight) in IN_FLIGHT.into_iter().enumerate() {
            for (team, figures) in teams.iter_mut().zip(&mut all) {
                if let Some(report) = team.run(&bench.job(Keys::New, in_flight, WINDOW)) {
                    figures.add(level, &report);
                }
                figures.failure = team.failure();
            }
        }
    }
    tell_pairs(bench, &all);
    tell_latency(bench, &all);
    draw(&all);
}

impl Figures {
    fn new(contender: Contender) -> Self {
        Self {
            contender,
            failure: String::new(),
            pairs: Default::default(),
            p50: Series::default(),
            p99: Series::default(),
            alone: Waits::new(),
        }
    }

    fn add(&mut self, level: usize, report: &Report) {
        self.pairs[level].add(report.pairs_per_second());
        if IN_FLIGHT[level] == 1 {
            let waits = report.waits();
            self.p50.add(waits.at(0.5) * 1e6);
            self.p99.add(waits.at(0.99) * 1e6);
            self.alone.add(&waits);
        }
    }
}

fn tell_pairs(bench: &mut Bench, all: &[Figures]) {
    for (level, in_flight) in IN_FLIGHT.into_iter().enumerate() {
        let scenario = format!("uncontended, {in_flight} in flight, pairs");
        let ours = &all[0].pairs[level];
        for figures in all {
            let name = figures.contender.name();
            let series = &figures.pairs[level];
            if series.is_empty() {
                bench.table.left_out(&scenario, name, &figures.failure);
            } else {
                let ratio = ratio(series, ours, "tower-lock");
                bench
                    .table
                    .row(&scenario, name, series.per_second(), ratio, "");
            }
        }
    }
}

fn tell_latency(bench: &mut Bench, all: &[Figures]) {
    let bare = all.iter().find(|it| it.contender == Contender::Bare);
    let bare = bare.expect("it is a contender");
    for figures in all.iter().filter(|figures| !figures.p50.is_empty()) {
        let name = figures.contender.name();
        let ratio = ratio(&figures.p50, &bare.p50, "bare");
        let note = format!("p99 {}", figures.p99.text(0, "µs"));
        let p50 = figures.p50.text(1, "µs");
        bench.table.row(
            "uncontended, 1 in flight, acquire p50",
            name,
            p50,
            ratio,
            note,
        );
    }
}

fn draw(all: &[Figures]) {
    let drawn: Vec<_> = all
        .iter()
        .filter(|figures| !figures.p50.is_empty())
        .collect();
    let waits = drawn.iter().map(|it| Line::new(it.contender, &it.alone));
    plot::waits(
        &result("latency.svg"),
        "Acquire of a free lock, 1 in flight",
        &waits.collect::<Vec<_>>(),
    );
    let pairs = drawn
        .iter()
        .map(|it| Line::new(it.contender, &it.pairs[..]));
    plot::throughput(
        &result("throughput.svg"),
        "Locks taken and given back, keys that nobody else wants",
        &IN_FLIGHT,
        &pairs.collect::<Vec<_>>(),
    );
}
