//! Shared parts of the scenarios.

use std::path::PathBuf;
use std::time::Duration;

use crate::contenders::Contender;
use crate::job::{Job, Keys, Mode};
use crate::knobs::Knobs;
use crate::redis_server::RedisServer;
use crate::table::Table;
use crate::team::Team;

pub(crate) struct Bench {
    pub(crate) server: RedisServer,
    pub(crate) rounds: usize,
    pub(crate) herd_window: Duration,
    pub(crate) starvation_window: Duration,
    pub(crate) table: Table,
    jobs: usize,
}

impl Bench {
    pub(crate) fn new(knobs: &Knobs) -> Self {
        Self {
            server: RedisServer::start(),
            rounds: knobs.rounds,
            herd_window: knobs.herd_window,
            starvation_window: knobs.starvation_window,
            table: Table::default(),
            jobs: 0,
        }
    }

    /// Returns a job with keys that no earlier job has used.
    pub(crate) fn job(&mut self, keys: Keys, in_flight: usize, window: Duration) -> Job {
        self.jobs += 1;
        Job {
            keys,
            name: format!("order{}", self.jobs),
            in_flight,
            window,
            hold: Duration::ZERO,
            spread: Duration::ZERO,
            pause: Duration::ZERO,
            mode: Mode::Exclusive,
        }
    }

    /// Starts a team of `size` processes per contender, and warms it up with these keys.
    pub(crate) fn teams(
        &mut self,
        contenders: &[Contender],
        size: usize,
        keys: Keys,
        in_flight: usize,
    ) -> Vec<Team> {
        let url = self.server.url();
        let mut teams = Vec::new();
        for &contender in contenders {
            let mut team = Team::start(contender, size, 1, &url);
            drop(team.run(&self.job(keys, in_flight, contender.warm_up())));
            teams.push(team);
        }
        teams
    }

    /// Returns a field of the server's own information.
    fn about_server(&self, field: &str) -> Option<String> {
        let info = self.server.cli(&["INFO", "server"]);
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find_map(|(name, value)| (name == field).then(|| value.trim_end().to_owned()))
    }

    /// Returns the microseconds that Redis has spent on the commands that the clients of a contender send.
    pub(crate) fn micros(&self, contender: Contender) -> u64 {
        let stats = self.server.cli(&["INFO", "commandstats"]);
        contender.sent(|command| {
            let prefix = format!("cmdstat_{command}:");
            let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
            let micros =
                line.and_then(|line| line.split(',').find_map(|it| it.strip_prefix("usec=")));
            micros.and_then(|it| it.parse().ok()).unwrap_or(0)
        })
    }

    pub(crate) fn server_process(&self) -> u32 {
        let process = self.about_server("process_id");
        process
            .and_then(|id| id.parse().ok())
            .expect("Redis reports its process")
    }

    /// Returns the rows since the last call, with the conditions of the measurement above them.
    pub(crate) fn markdown(&mut self) -> String {
        let table = std::mem::take(&mut self.table);
        let version = self.about_server("redis_version");
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        format!(
            "{} rounds, interleaved; {cores} cores, shared by clients and server; Redis {} on \
             loopback.\n\n{}",
            self.rounds,
            version.as_deref().unwrap_or("of an unknown version"),
            table.markdown()
        )
    }
}

/// Returns the order of the contenders in a round. Each round starts with another one, so no contender
/// always follows the same one.
pub(crate) fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round) % count)
}

/// Returns the path of a table or a plot, and creates its folder.
pub(crate) fn result(name: &str) -> PathBuf {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../results"));
    std::fs::create_dir_all(&folder).expect("a folder for the results");
    folder.join(name)
}
