//! A writer among readers of other processes. The readers leave no pause.

use std::time::Duration;

use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::job::{Keys, Mode};
use crate::table::{Series, ratio};
use crate::target::{self, Target};

const SCENARIO: &str =
    "shared, a writer among 8 readers of 4 processes, reads of 25 to 75 ms: p99 of its wait";
/// The processes of readers. The writer has one of its own.
const PROCESSES: usize = 4;
const READERS: usize = 2;
const SHORTEST: Duration = Duration::from_millis(25);
const SPREAD: Duration = Duration::from_millis(50);
/// The time between a write and the next one, in which the readers begin again.
const PAUSE: Duration = Duration::from_millis(50);
const WINDOW: Duration = Duration::from_secs(5);
/// Each window has about fifty writes.
const MOST_ROUNDS: usize = 2;
/// Added to the longest read, in milliseconds.
const SLACK: f64 = 120.0;

#[derive(Default)]
struct Figures {
    /// The wait of the writer, in milliseconds.
    p50: Series,
    p99: Series,
    longest: Series,
    /// Per second.
    writes: Series,
    reads: Series,
}

pub(super) fn run(bench: &mut Bench) {
    let contenders = Contender::READ_WRITE;
    let mut teams = bench.teams(&contenders, PROCESSES + 1, Keys::Shared(1), 1);
    let mut all = contenders.map(|_| Figures::default());
    for round in 0..bench.rounds.min(MOST_ROUNDS) {
        for at in turns(round, teams.len()) {
            let mut reads = bench.job(Keys::Shared(1), READERS, WINDOW);
            let mut writes = reads.clone();
            (reads.mode, reads.hold, reads.spread) = (Mode::Shared, SHORTEST, SPREAD);
            (writes.in_flight, writes.pause) = (1, PAUSE);
            let jobs = [(PROCESSES, &reads), (1, &writes)];
            if let Some([reads, writes]) = teams[at].run_each(jobs) {
                let (figures, waits) = (&mut all[at], writes.waits());
                figures.p50.add(waits.at(0.5) * 1e3);
                figures.p99.add(waits.at(0.99) * 1e3);
                figures.longest.add(waits.longest() * 1e3);
                let rate = |grants: u64| grants as f64 / WINDOW.as_secs_f64();
                figures.writes.add(rate(writes.grants()));
                figures.reads.add(rate(reads.grants()));
            }
        }
    }
    let [ours, ..] = &all;
    for (team, figures) in teams.iter().zip(&all) {
        let name = team.contender.name();
        if figures.p99.is_empty() {
            let note = team.noted(String::new());
            bench.table.row(SCENARIO, name, "", "", note);
            continue;
        }
        let ratio = ratio(&figures.p99, &ours.p99, "tower-lock");
        let p99 = figures.p99.text(0, "ms");
        let note = team.noted(figures.note(team.contender));
        bench.table.row(SCENARIO, name, p99, ratio, note);
    }
}

impl Figures {
    fn note(&self, contender: Contender) -> String {
        let most = (SHORTEST + SPREAD).as_secs_f64() * 1e3 + SLACK;
        let targets = match contender {
            Contender::Ours => vec![Target::at_most("p99 in ms", self.p99.median(), most, 0)],
            _ => Vec::new(),
        };
        let (p50, longest) = (self.p50.text(0, "ms"), self.longest.text(0, "ms"));
        let (writes, reads) = (self.writes.text(1, "/s"), self.reads.text(0, "/s"));
        let note = format!("p50 {p50}, longest {longest}; writes {writes}; reads {reads}");
        target::note(&targets, note)
    }
}
