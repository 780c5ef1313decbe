//! All cells, each with all contenders in turns.

use super::cell::{Cell, MOST_PROCESSES};
use super::figures::Figures;
use super::targets;
use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::job::Keys;
use crate::team::Team;

const CONTENDERS: [Contender; 5] = [
    Contender::Ours,
    Contender::Rslock,
    Contender::Redisson,
    Contender::RedissonFair,
    Contender::Rueidislock,
];
/// Few clients, because windows are long: each of 128 managers needs several turns in a window.
pub(super) const MOST_ROUNDS: usize = 2;

/// The processes of one contender.
struct Crew {
    /// One manager in each.
    processes: Team,
    /// One process for each number of managers that share one.
    together: Vec<(usize, Team)>,
}

pub(super) fn run(bench: &mut Bench) {
    let cells = Cell::all();
    let mut crews: Vec<_> = CONTENDERS
        .into_iter()
        .map(|contender| Crew::start(bench, contender, &cells))
        .collect();
    let window = bench.herd_window;
    let figures = || CONTENDERS.map(|_| Figures::over(window));
    let mut all: Vec<_> = cells.iter().map(|_| figures()).collect();
    for round in 0..bench.rounds.min(MOST_ROUNDS) {
        for (cell, figures) in cells.iter().zip(&mut all) {
            for at in turns(round, crews.len()) {
                if let Some(team) = crews[at].team(*cell) {
                    figures[at].measure(bench, *cell, team);
                }
            }
        }
    }
    let mut alone = 0;
    for (at, cell) in cells.iter().enumerate() {
        // The cells of a hold begin with that of one process.
        if cell.managers == 1 {
            alone = at;
        }
        tell(bench, *cell, &mut crews, &all[at], &all[alone]);
    }
}

/// The figures of each contender.
type Row = [Figures; CONTENDERS.len()];

fn tell(bench: &mut Bench, cell: Cell, crews: &mut [Crew], all: &Row, alone: &Row) {
    let scenario = cell.name();
    let [ours, .., fair] = all.each_ref().map(|it| &it.contention.grants);
    for (crew, figures) in crews.iter_mut().zip(all) {
        let contender = crew.processes.contender;
        let Some(team) = crew.team(cell) else {
            let reason = "each client has tens of threads, too many for this machine";
            bench.table.left_out(&scenario, contender.name(), reason);
            continue;
        };
        let grants = &figures.contention.grants;
        let note = || {
            let targets = match contender {
                Contender::Ours => targets::of(cell, figures, &alone[0].contention.grants, fair),
                _ => Vec::new(),
            };
            figures.note(contender, &targets)
        };
        bench.table.rate(&scenario, team, grants, ours, note);
    }
}

impl Crew {
    fn start(bench: &mut Bench, contender: Contender, cells: &[Cell]) -> Self {
        let url = bench.server.url();
        let mut processes = Team::start(contender, MOST_PROCESSES, 1, &url);
        warm_up(bench, &mut processes, 1);
        let mut together = Vec::new();
        if contender.shares_processes() {
            let shared = cells.iter().filter(|cell| !cell.has_processes());
            for managers in shared.map(|cell| cell.managers) {
                if together.iter().all(|(count, _)| *count != managers) {
                    let mut team = Team::start(contender, 1, managers, &url);
                    warm_up(bench, &mut team, managers);
                    together.push((managers, team));
                }
            }
        }
        Self {
            processes,
            together,
        }
    }

    /// Returns the team of a cell, or `None` if the contender has no managers that share a process.
    fn team(&mut self, cell: Cell) -> Option<&mut Team> {
        if cell.has_processes() {
            return Some(&mut self.processes);
        }
        let mut together = self.together.iter_mut();
        let found = together.find(|(managers, _)| *managers == cell.managers);
        found.map(|(_, team)| team)
    }
}

fn warm_up(bench: &mut Bench, team: &mut Team, clients: usize) {
    let window = team.contender.warm_up();
    drop(team.run(&bench.job(Keys::Shared(1), clients, window)));
}
