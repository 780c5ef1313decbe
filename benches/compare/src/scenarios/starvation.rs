//! One writer among readers that leave no pause, and one reader among such writers: the longest waits.

use std::time::Duration;

use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::job::{Keys, Mode};
use crate::table::{Series, ratio};
use crate::team::{Report, Team};

/// The processes of the crowd. The lone client has one of its own.
const PROCESSES: usize = 8;
/// The readers of a process, so that reads overlap without an end.
const READERS: usize = 4;
const HOLD: Duration = Duration::from_millis(5);
const SPREAD: Duration = Duration::from_millis(5);
/// The windows are long.
const MOST_ROUNDS: usize = 1;

/// The crowd and the lone client.
#[derive(Clone, Copy)]
enum Cast {
    Readers,
    Writers,
}

#[derive(Default)]
struct Figures {
    /// The longest wait of the lone client, in milliseconds.
    lone: Series,
    /// The longest wait of the crowd.
    crowd: Series,
    /// Grants of the lone client in the window.
    grants: Series,
    /// Grants of the crowd per second.
    rate: Series,
    /// The grants of the client with the fewest in the crowd, over an equal share.
    share: Series,
}

pub(super) fn run(bench: &mut Bench) {
    let contenders = Contender::READ_WRITE;
    let mut teams = bench.teams(&contenders, PROCESSES + 1, Keys::Shared(1), 1);
    for cast in [Cast::Readers, Cast::Writers] {
        let mut all = contenders.map(|_| Figures::default());
        for round in 0..bench.rounds.min(MOST_ROUNDS) {
            for at in turns(round, teams.len()) {
                all[at].measure(bench, cast, &mut teams[at]);
            }
        }
        tell(bench, cast, &teams, &all);
    }
}

impl Figures {
    fn measure(&mut self, bench: &mut Bench, cast: Cast, team: &mut Team) {
        let mut crowd = bench.job(Keys::Shared(1), cast.clients(), bench.starvation_window);
        (crowd.mode, crowd.hold, crowd.spread) = (cast.crowd(), HOLD, SPREAD);
        let mut lone = crowd.clone();
        (lone.in_flight, lone.mode) = (1, cast.lone());
        let jobs = [(PROCESSES, &crowd), (1, &lone)];
        if let Some([crowd, lone]) = team.run_each(jobs) {
            let longest = |report: &Report| report.waits().longest() * 1e3;
            self.lone.add(longest(&lone));
            self.crowd.add(longest(&crowd));
            self.grants.add(lone.grants() as f64);
            let seconds = bench.starvation_window.as_secs_f64();
            self.rate.add(crowd.grants() as f64 / seconds);
            self.share
                .add(crowd.smallest_part(PROCESSES * cast.clients()));
        }
    }

    fn note(&self) -> String {
        let (grants, crowd) = (self.grants.text(0, "grants"), self.crowd.text(0, "ms"));
        let (rate, share) = (self.rate.text(0, "/s"), self.share.text(2, ""));
        format!(
            "{grants}; the others: longest wait {crowd}, {rate}, smallest share {share} of an equal one"
        )
    }
}

impl Cast {
    fn clients(self) -> usize {
        match self {
            Self::Readers => READERS,
            Self::Writers => 1,
        }
    }

    fn crowd(self) -> Mode {
        match self {
            Self::Readers => Mode::Shared,
            Self::Writers => Mode::Exclusive,
        }
    }

    fn lone(self) -> Mode {
        match self {
            Self::Readers => Mode::Exclusive,
            Self::Writers => Mode::Shared,
        }
    }

    fn name(self, window: Duration) -> String {
        let who = match self {
            Self::Readers => "a writer among 32 readers of 8 processes",
            Self::Writers => "a reader among 8 writers of 8 processes",
        };
        format!(
            "starvation, {who}, holds of 5 to 10 ms, {} s: its longest wait",
            window.as_secs()
        )
    }
}

fn tell(bench: &mut Bench, cast: Cast, teams: &[Team], all: &[Figures]) {
    let scenario = cast.name(bench.starvation_window);
    for (team, figures) in teams.iter().zip(all) {
        let name = team.contender.name();
        if figures.lone.is_empty() {
            let note = team.noted(String::new());
            bench.table.row(&scenario, name, "", "", note);
            continue;
        }
        let ratio = ratio(&figures.lone, &all[0].lone, "tower-lock");
        let longest = figures.lone.text(0, "ms");
        let note = team.noted(figures.note());
        bench.table.row(&scenario, name, longest, ratio, note);
    }
}
