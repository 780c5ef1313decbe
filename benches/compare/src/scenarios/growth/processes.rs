//! More processes, each with one client: on one key, and on new keys.

use std::time::Duration;

use super::{ROUND_TRIPS, draw, named, rounds, slope};
use crate::bench::Bench;
use crate::contenders::Contender;
use crate::job::Keys;
use crate::scenarios::processes::counted;
use crate::table::Series;
use crate::team::Team;

const LEVELS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const WINDOW: Duration = Duration::from_secs(1);
const KEYS: [(Keys, &str); 2] = [(Keys::Shared(1), "one key"), (Keys::New, "new keys")];

#[derive(Default)]
struct Figures {
    grants: [Series; LEVELS.len()],
    commands: [Series; LEVELS.len()],
    /// The grants of the process with the fewest, divided by an equal share.
    share: [Series; LEVELS.len()],
    /// The longest wait in milliseconds.
    longest: [Series; LEVELS.len()],
}

pub(super) fn run(bench: &mut Bench, urls: &[String; 2]) {
    let most = LEVELS[LEVELS.len() - 1];
    let mut lines = Vec::new();
    for (url, round_trip) in urls.iter().zip(ROUND_TRIPS) {
        let mut team = Team::start(Contender::Ours, most, 1, url);
        drop(team.run(&bench.job(Keys::New, 1, WINDOW)));
        for (keys, name) in KEYS {
            let mut figures = Figures::default();
            for _ in 0..rounds(bench) {
                for (level, processes) in LEVELS.into_iter().enumerate() {
                    figures.add(bench, &mut team, keys, level, processes);
                }
            }
            let way = named(round_trip);
            if let Some(failure) = team.failure() {
                let scenario = format!("growth: processes, {name}, {way}");
                bench.table.left_out(&scenario, "tower-lock", &failure);
                continue;
            }
            for (level, processes) in LEVELS.into_iter().enumerate() {
                let scenario = format!("growth, {processes} processes, {name}, {way}: grants");
                let rate = figures.grants[level].text(0, "/s");
                let slope = slope(&LEVELS, &figures.grants, level);
                (bench.table).row(&scenario, "tower-lock", rate, slope, figures.note(level));
            }
            lines.push((format!("{name}, {way}"), figures));
        }
    }
    let lines = lines
        .iter()
        .map(|(name, it)| (name.clone(), &it.grants[..]));
    let axes = ["processes of one client", "grants per second"];
    let title = "More processes";
    draw(
        "growth-processes.svg",
        title,
        axes,
        &LEVELS,
        &lines.collect::<Vec<_>>(),
    );
}

impl Figures {
    fn add(
        &mut self,
        bench: &mut Bench,
        team: &mut Team,
        keys: Keys,
        level: usize,
        processes: usize,
    ) {
        let job = bench.job(keys, 1, WINDOW);
        let (Some(report), commands) = counted(bench, team, processes, &job) else {
            return;
        };
        self.grants[level].add(report.grants() as f64 / WINDOW.as_secs_f64());
        self.commands[level].add(commands as f64 / report.pairs() as f64);
        self.share[level].add(report.smallest_part(processes));
        self.longest[level].add(report.waits().longest() * 1e3);
    }

    fn note(&self, level: usize) -> String {
        format!(
            "{} commands for each grant; smallest share {} of an equal one; longest wait {}",
            self.commands[level].text(2, ""),
            self.share[level].text(2, ""),
            self.longest[level].text(1, "ms"),
        )
    }
}
