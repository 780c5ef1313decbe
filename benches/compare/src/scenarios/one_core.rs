//! An uncontended lock with client and server on one core, which shows its cost in work. On two cores, most
//! of the time is the wake-up of the other process.

use std::time::Duration;

use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::cores::OnOneCore;
use crate::job::Keys;
use crate::table::Series;
use crate::team::Team;

const SCENARIO: &str = "uncontended, 1 in flight, client and server on one core: p50 of an acquire";
const WINDOW: Duration = Duration::from_millis(300);
const WINDOWS: usize = 3;

pub(crate) fn run(bench: &mut Bench) {
    let teams = bench.teams(&Contender::ALL, 1, Keys::New, 64);
    // The process may have ended, and cannot be put on a core then.
    let (mut teams, failed): (Vec<_>, Vec<_>) =
        teams.into_iter().partition(|team| team.failure().is_none());
    for team in failed {
        let reason = team.failure().unwrap_or_default();
        bench
            .table
            .row(SCENARIO, team.contender.name(), "", "", reason);
    }
    let clients = teams.iter().flat_map(Team::processes);
    let all = clients.chain([bench.server_process()]).collect();
    let _pinned = match OnOneCore::new(all) {
        Ok(pinned) => pinned,
        Err(reason) => return bench.table.left_out(SCENARIO, "all", &reason),
    };
    let mut latencies: Vec<_> = teams
        .iter()
        .map(|_| <(Series, Series)>::default())
        .collect();
    let count = teams.len();
    for round in 0..bench.rounds {
        for at in (0..WINDOWS).flat_map(|window| turns(round + window, count)) {
            if let Some(report) = teams[at].run(&bench.job(Keys::New, 1, WINDOW)) {
                let waits = report.waits();
                latencies[at].0.add(waits.at(0.5) * 1e6);
                latencies[at].1.add(waits.at(0.99) * 1e6);
            }
        }
    }
    let latencies: Vec<_> = latencies.iter().map(|(p50, p99)| (p50, p99)).collect();
    bench.table.latencies(SCENARIO, &teams, &latencies);
}
